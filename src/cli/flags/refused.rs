//! Options of llama.cpp that this program does not have: each one is answered by name.
//!
//! `no_effect`: without it the result is the same, or it only refines something that is refused; one warning, and the run
//! goes on. `refused`: without it the result would be another one; an error, unless the value asks for nothing (`neutral`).

use super::{flag, Action, Flag};

const fn no_effect(names: &'static [&'static str], hint: &'static str, env: &'static str, why: &'static str) -> Flag {
    flag(names, hint, env, Action::NoEffect(why), "")
}

const fn refused(names: &'static [&'static str], hint: &'static str, env: &'static str, why: &'static str) -> Flag {
    flag(names, hint, env, Action::Refused(why), "")
}

const DOCKER: &str = "models are not fetched from Docker registries; use -hf or -mu";
const GONE: &str = "llama.cpp has removed it, too";
const MEDIA: &str = "images, sound and video are not implemented";
const REASONING: &str = "thoughts are printed as part of the text";
const SERVER: &str = "it concerns servers only";
const SPECULATIVE: &str = "speculative decoding is not implemented";

#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    refused(&["--server-base"], "URL", "", "there is no client for servers"),
    no_effect(&["--swa-full"], "", "LLAMA_ARG_SWA_FULL", "layers with a sliding window hold their window"),
    no_effect(&["-ctxcp", "--ctx-checkpoints", "--swa-checkpoints"], "N", "LLAMA_ARG_CTX_CHECKPOINTS", SERVER),
    no_effect(&["-cram", "--cache-ram"], "N", "LLAMA_ARG_CACHE_RAM", SERVER),
    no_effect(&["-bs", "--backend-sampling"], "", "LLAMA_ARG_BACKEND_SAMPLING", "tokens are sampled on the CPU"),
    refused(&["-gan", "--grp-attn-n"], "N", "LLAMA_ARG_GRP_ATTN_N", "self-extend is not implemented").neutral(&["1"]),
    no_effect(&["-gaw", "--grp-attn-w"], "N", "LLAMA_ARG_GRP_ATTN_W", "self-extend is not implemented"),
    no_effect(&["--no-host"], "", "LLAMA_ARG_NO_HOST", "weights of the CPU stay in the mapped file"),
    no_effect(&["-dt", "--defrag-thold"], "N", "LLAMA_ARG_DEFRAG_THOLD", "deprecated in llama.cpp, too"),
    no_effect(&["-np", "--parallel"], "N", "LLAMA_ARG_N_PARALLEL", "one sequence is decoded at a time").neutral(&["1"]),
    no_effect(&["-lzm", "--lazy-mode"], "MODE", "LLAMA_ARG_LAZY_MODE", "tensors are read as --load-mode says"),
    refused(&["-dr", "--docker-repo"], "[<repo>/]<model>[:quant]", "LLAMA_ARG_DOCKER_REPO", DOCKER),
    no_effect(&["--reasoning-format"], "FORMAT", "LLAMA_ARG_THINK", REASONING).neutral(&["none", "auto"]),
    no_effect(&["--reasoning-budget-message"], "MESSAGE", "LLAMA_ARG_THINK_BUDGET_MESSAGE", REASONING),
    no_effect(&["--skip-chat-parsing"], "", "LLAMA_ARG_SKIP_CHAT_PARSING", "the answer is printed as it comes").off_by(&["--no-skip-chat-parsing"]),
    refused(&["--log-jsonl"], "", "LLAMA_ARG_LOG_JSONL", "messages are plain text on standard error").off_by(&["--no-log-jsonl"]),
    refused(&["--log-prompts-dir"], "PATH", "", "messages are plain text on standard error"),
    refused(&["--gpt-oss-20b-default"], "", "", "use -hf ggml-org/gpt-oss-20b-GGUF"),
    refused(&["--gpt-oss-120b-default"], "", "", "use -hf ggml-org/gpt-oss-120b-GGUF"),
    refused(&["--vision-gemma-4b-default"], "", "", MEDIA),
    refused(&["--vision-gemma-12b-default"], "", "", MEDIA),

    // Speculative decoding.
    refused(&["--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft"], "<user>/<model>[:quant]", "LLAMA_ARG_SPEC_DRAFT_HF_REPO", SPECULATIVE),
    refused(&["--spec-draft-threads", "-td", "--threads-draft"], "N", "", SPECULATIVE),
    refused(&["--spec-draft-threads-batch", "-tbd", "--threads-batch-draft"], "N", "", SPECULATIVE),
    refused(&["--spec-draft-cpu-mask", "-Cd", "--cpu-mask-draft"], "M", "", SPECULATIVE),
    refused(&["--spec-draft-cpu-range", "-Crd", "--cpu-range-draft"], "lo-hi", "", SPECULATIVE),
    refused(&["--spec-draft-cpu-strict", "--cpu-strict-draft"], "<0|1>", "", SPECULATIVE),
    refused(&["--spec-draft-prio", "--prio-draft"], "N", "", SPECULATIVE),
    refused(&["--spec-draft-poll", "--poll-draft"], "<0|1>", "", SPECULATIVE),
    refused(&["--spec-draft-cpu-mask-batch", "-Cbd", "--cpu-mask-batch-draft"], "M", "", SPECULATIVE),
    refused(&["--spec-draft-cpu-strict-batch", "--cpu-strict-batch-draft"], "<0|1>", "", SPECULATIVE),
    refused(&["--spec-draft-prio-batch", "--prio-batch-draft"], "N", "", SPECULATIVE),
    refused(&["--spec-draft-poll-batch", "--poll-batch-draft"], "<0|1>", "", SPECULATIVE),
    refused(&["--spec-draft-type-k", "-ctkd", "--cache-type-k-draft"], "TYPE", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K", SPECULATIVE),
    refused(&["--spec-draft-type-v", "-ctvd", "--cache-type-v-draft"], "TYPE", "LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V", SPECULATIVE),
    refused(&["--spec-draft-override-tensor", "-otd", "--override-tensor-draft"], "<tensor name pattern>=<buffer type>,...", "", SPECULATIVE),
    refused(&["--spec-draft-cpu-moe", "-cmoed", "--cpu-moe-draft"], "", "LLAMA_ARG_SPEC_DRAFT_CPU_MOE", SPECULATIVE),
    refused(&["--spec-draft-n-cpu-moe", "--spec-draft-ncmoe", "-ncmoed", "--n-cpu-moe-draft"], "N", "LLAMA_ARG_SPEC_DRAFT_N_CPU_MOE", SPECULATIVE),
    refused(&["--spec-draft-n-max"], "N", "LLAMA_ARG_SPEC_DRAFT_N_MAX", SPECULATIVE),
    refused(&["--spec-draft-n-min"], "N", "LLAMA_ARG_SPEC_DRAFT_N_MIN", SPECULATIVE),
    refused(&["--spec-synth-len"], "L", "LLAMA_ARG_SPEC_SYNTH_LEN", SPECULATIVE),
    refused(&["--spec-synth-rates"], "P0,P1,...", "LLAMA_ARG_SPEC_SYNTH_RATES", SPECULATIVE),
    refused(&["--spec-draft-p-split", "--draft-p-split"], "P", "LLAMA_ARG_SPEC_DRAFT_P_SPLIT", SPECULATIVE),
    refused(&["--spec-draft-p-min", "--draft-p-min"], "P", "LLAMA_ARG_SPEC_DRAFT_P_MIN", SPECULATIVE),
    refused(&["--spec-draft-backend-sampling"], "", "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING", SPECULATIVE).off_by(&["--no-spec-draft-backend-sampling"]),
    refused(&["--spec-draft-sampling"], "{greedy,probabilistic}", "LLAMA_ARG_SPEC_DRAFT_SAMPLING", SPECULATIVE),
    refused(&["--spec-draft-device", "-devd", "--device-draft"], "<dev1,dev2,..>", "", SPECULATIVE),
    refused(&["--spec-draft-ngl", "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"], "N", "LLAMA_ARG_N_GPU_LAYERS_DRAFT", SPECULATIVE),
    refused(&["--spec-draft-model", "-md", "--model-draft"], "FNAME", "LLAMA_ARG_SPEC_DRAFT_MODEL", SPECULATIVE),
    refused(&["--spec-type"], "TYPE,...", "LLAMA_ARG_SPEC_TYPE", SPECULATIVE).neutral(&["none"]),
    refused(&["--spec-ngram-mod-n-min"], "N", "", SPECULATIVE),
    refused(&["--spec-ngram-mod-n-max"], "N", "", SPECULATIVE),
    refused(&["--spec-ngram-mod-n-match"], "N", "", SPECULATIVE),
    refused(&["--spec-ngram-simple-size-n"], "N", "", SPECULATIVE),
    refused(&["--spec-ngram-simple-size-m"], "N", "", SPECULATIVE),
    refused(&["--spec-ngram-simple-min-hits"], "N", "", SPECULATIVE),
    refused(&["--spec-ngram-map-k-size-n"], "N", "", SPECULATIVE),
    refused(&["--spec-ngram-map-k-size-m"], "N", "", SPECULATIVE),
    refused(&["--spec-ngram-map-k-min-hits"], "N", "", SPECULATIVE),
    refused(&["--spec-ngram-map-k4v-size-n"], "N", "", SPECULATIVE),
    refused(&["--spec-ngram-map-k4v-size-m"], "N", "", SPECULATIVE),
    refused(&["--spec-ngram-map-k4v-min-hits"], "N", "", SPECULATIVE),
    refused(&["--draft", "--draft-n", "--draft-max"], "N", "LLAMA_ARG_DRAFT_MAX", SPECULATIVE),
    refused(&["--draft-min", "--draft-n-min"], "N", "LLAMA_ARG_DRAFT_MIN", SPECULATIVE),
    refused(&["--spec-default"], "", "", SPECULATIVE),

    // Multimodal models.
    refused(&["-mm", "--mmproj"], "FILE", "LLAMA_ARG_MMPROJ", MEDIA),
    refused(&["-mmu", "--mmproj-url"], "URL", "LLAMA_ARG_MMPROJ_URL", MEDIA),
    no_effect(&["--mmproj-auto"], "", "LLAMA_ARG_MMPROJ_AUTO", MEDIA).off_by(&["--no-mmproj", "--no-mmproj-auto"]),
    no_effect(&["--mmproj-offload"], "", "LLAMA_ARG_MMPROJ_OFFLOAD", MEDIA).off_by(&["--no-mmproj-offload"]),
    no_effect(&["-mmdev", "--mmproj-device"], "DEVICE", "", MEDIA),
    refused(&["--image", "--audio", "--video"], "FILE", "", MEDIA),
    no_effect(&["--image-min-tokens"], "N", "LLAMA_ARG_IMAGE_MIN_TOKENS", MEDIA),
    no_effect(&["--image-max-tokens"], "N", "LLAMA_ARG_IMAGE_MAX_TOKENS", MEDIA),
    no_effect(&["--video-fps"], "N", "LLAMA_ARG_VIDEO_FPS", MEDIA),
    no_effect(&["--video-timestamp-interval"], "N", "LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL", MEDIA),
    no_effect(&["--video-ffmpeg-dir"], "DIR", "LLAMA_ARG_VIDEO_FFMPEG_DIR", MEDIA),

    // Spellings of older versions that people still type.
    no_effect(&["--tfs"], "N", "", GONE),
    no_effect(&["--penalize-nl"], "", "", GONE).off_by(&["--no-penalize-nl"]),
    refused(&["--min-keep"], "N", "", GONE),
    refused(&["--logdir"], "DIR", "", "redirect standard error"),
    no_effect(&["--log-new"], "", "", GONE),
    refused(&["-dkvc", "--dump-kv-cache"], "", "", "--kv-report says what the cache holds"),
    refused(&["-mtest"], "", "", GONE),
    refused(&["--cfg-scale"], "N", "", GONE),
    refused(&["--cfg-negative-prompt"], "PROMPT", "", GONE),
    refused(&["--infill"], "", "", GONE),
    refused(&["--random-prompt"], "", "", GONE),
    no_effect(&["-kvu", "--kv-unified"], "", "", SERVER).off_by(&["-no-kvu", "--no-kv-unified"]),
    refused(&["-ins", "--instruct"], "", "", "use -cnv for a conversation by the model's chat template"),
    refused(&["--chunks"], "N", "", "it belongs to the perplexity tool"),
    refused(&["--perplexity", "--ppl"], "", "", "it belongs to the perplexity tool"),
];
