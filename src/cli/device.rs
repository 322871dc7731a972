//! From the options of devices to devices, and to layers that fit their memory, before anything is allocated.
//!
//! Source of the behaviour: llama.cpp `common/arg.cpp` (`-dev`), `src/llama-model.cpp` (shares), `common/fit.cpp` (a context that
//! is not given shrinks first, then fewer layers are offloaded).

use super::high::HighArgs;
use super::low::{Devices, LoadMode, OnOffAuto, SplitMode};
use super::setup::{cache_type, method_options};
use crate::cache::{CacheOptions, KvCache};
use crate::compress::by_name;
use crate::error::{Error, Result};
use crate::ggml::{self, Device};
use crate::gguf::{Gguf, TensorInfo};
use crate::model::{architecture, compute_bytes, layer_of, Hparams, Offload, Placement, Reader, RopeOptions};
use regex::Regex;

/// Contexts are multiples of this.
const CTX_STEP: usize = 256;
/// Smaller batches are not proposed.
const MIN_UBATCH: usize = 16;
/// Share of the CPU's available memory that may be used.
const FIT_SHARE: f64 = 0.9;
/// What may be gone when a proposal is tried, at most an eighth of what is free: other programs go on, and each thread's heap takes
/// 64 MiB of addresses, or not yet.
const RESERVE: u64 = 128 << 20;
const MIB: f64 = 1048576.0;

/// The text of `--list-devices`, as llama.cpp prints it.
///
/// # Errors
/// When a server cannot be reached.
pub fn list(asked: &Devices) -> Result<String> {
    asked.rpc.iter().try_for_each(|server| ggml::add_server(server))?;
    let row = |d: Device| {
        let (free, total) = d.memory();
        format!("  {}: {} ({} MiB, {} MiB free)\n", d.name(), d.description(), total >> 20, free >> 20)
    };
    let rows: String = Device::offload().into_iter().map(row).collect();
    Ok(format!("Available devices:\n{}", if rows.is_empty() { "  (none)\n" } else { &rows }))
}

/// The devices that are asked for, all there are unless some are named.
///
/// # Errors
/// When a server cannot be reached, or there is no device of that name or index.
pub fn choose(asked: &Devices) -> Result<Vec<Device>> {
    asked.rpc.iter().try_for_each(|server| ggml::add_server(server))?;
    let all = Device::offload();
    let known = || match all.is_empty() {
        true => "this build finds none beside the CPU (-dev none)".to_owned(),
        false => format!("there are {}", all.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ")),
    };
    let find = |name: &String| {
        let found = all.iter().find(|d| d.name().eq_ignore_ascii_case(name)).copied();
        found.ok_or_else(|| Error::Usage(format!("no device is named '{name}'; {}", known())))
    };
    let devices: Vec<Device> = match &asked.names {
        None => all.clone(),
        Some(names) if names.iter().all(|n| n == "none") => Vec::new(),
        Some(names) => names.iter().map(find).collect::<Result<_>>()?,
    };
    match asked.split_mode {
        SplitMode::Layer => Ok(devices),
        SplitMode::None if devices.is_empty() => Ok(devices),
        SplitMode::None => match devices.get(asked.main) {
            Some(&main) => Ok(vec![main]),
            None => Err(Error::Usage(format!("-mg {}: {}", asked.main, known()))),
        },
    }
}

/// Where layers live when nothing is fitted: as asked for, or on devices.
///
/// # Errors
/// As [`choose`], and when the model's numbers cannot be read.
pub fn offload(asked: &Devices, gguf: &Gguf) -> Result<Offload> {
    let n_layer = architecture(gguf)?.hparams(&Reader::new(gguf, RopeOptions::default()))?.n_layer;
    let devices = choose(asked)?;
    let shares: Vec<f64> = devices.iter().map(|d| d.memory().0.max(1) as f64).collect();
    let mut offload = Offload { devices, kv_on_cpu: asked.kv_on_cpu, ..Offload::default() };
    offload.split(n_layer, usize::try_from(asked.n_layers).unwrap_or(n_layer + 1), &shares);
    Ok(offload)
}

/// Bytes of some of a model's weights.
#[derive(Clone)]
struct WeightBytes {
    layers: Vec<u64>,
    output: u64,
    /// What no layer has: embeddings.
    rest: u64,
}

impl WeightBytes {
    /// Those of which `counts` says so, for a tensor and whether it serves as output matrix.
    fn of(gguf: &Gguf, n_layer: usize, counts: impl Fn(&TensorInfo, bool) -> bool) -> WeightBytes {
        let mut bytes = WeightBytes { layers: vec![0; n_layer], output: 0, rest: 0 };
        for t in gguf.tensors().iter().filter(|t| counts(t, false)) {
            match layer_of(&t.name).filter(|&il| il < n_layer) {
                Some(il) => bytes.layers[il] += t.n_bytes,
                None if t.name.starts_with("output") => bytes.output += t.n_bytes,
                None => bytes.rest += t.n_bytes,
            }
        }
        if gguf.tensor("output.weight").is_none() {
            // Tied embeddings are copied where they are multiplied from other memory.
            bytes.output += gguf.tensor("token_embd.weight").filter(|t| counts(t, true)).map_or(0, |t| t.n_bytes);
        }
        bytes
    }

    fn total(&self) -> u64 {
        self.layers.iter().sum::<u64>() + self.output + self.rest
    }
}

/// What has to fit where.
#[derive(Clone)]
struct Fit<'a> {
    asked: &'a Devices,
    offload: Offload,
    weights: WeightBytes,
    /// Those that take memory of the CPU where no device has them: what does not stay in the mapped file.
    held: WeightBytes,
    hp: &'a Hparams,
    cache: CacheOptions,
    /// Whether attention is computed by matrix products.
    explicit: bool,
    /// Per device; `None` = unknown.
    free: Vec<Option<u64>>,
    cpu_free: Option<u64>,
    /// Addresses that are left where they are limited; they include those of mapped files.
    addresses: Option<u64>,
    /// Taken off both.
    reserve: u64,
    shares: Vec<f64>,
}

impl Fit<'_> {
    fn kv_bytes(&self, cache: &CacheOptions) -> u64 {
        KvCache::bytes_needed(&self.hp.cache_shape(), cache)
    }

    fn compute_bytes(&self, cache: &CacheOptions) -> u64 {
        compute_bytes(self.hp, cache, self.explicit, 1)
    }

    fn split(&self, n_offloaded: usize) -> Offload {
        let mut offload = self.offload.clone();
        offload.split(self.hp.n_layer, n_offloaded, &self.shares);
        offload
    }

    /// Whether caches and weights fit with this many layers on devices.
    fn fits(&self, n_offloaded: usize, cache: &CacheOptions) -> bool {
        let (offload, shape) = (self.split(n_offloaded), self.hp.cache_shape());
        let mut need = vec![0u64; offload.devices.len()];
        let is_on_cpu = offload.layers.iter().any(Option::is_none);
        let mut on_cpu = self.held.rest + if is_on_cpu { self.compute_bytes(cache) } else { 0 };
        for il in 0..self.hp.n_layer {
            let (kv, device) = (KvCache::layer_bytes(&shape, cache, il), offload.layers[il]);
            match device.filter(|_| !offload.kv_on_cpu) {
                Some(i) => need[i] += kv,
                None => on_cpu += kv,
            }
            match device {
                Some(i) => need[i] += self.weights.layers[il],
                None => on_cpu += self.held.layers[il],
            }
        }
        match offload.output {
            Some(i) => need[i] += self.weights.output,
            None => on_cpu += self.held.output,
        }
        let margin = |i: usize| {
            let given = &self.asked.margins_mib;
            (given.get(i).or(given.last()).copied().unwrap_or(1024.0) * MIB) as u64
        };
        let fits = |i: usize| self.free[i].is_none_or(|free| need[i] == 0 || need[i] + margin(i) <= free);
        let leaves = |free: Option<u64>, need: u64| {
            let left = free.map(|free| free - self.reserve.min(free / 8));
            left.is_none_or(|left| need <= (left as f64 * FIT_SHARE) as u64)
        };
        (0..need.len()).all(fits)
            && leaves(self.cpu_free, on_cpu)
            && leaves(self.addresses, on_cpu.saturating_add(self.weights.total()))
    }

    /// The largest context up to `most` that fits, a multiple of [`CTX_STEP`]; 0 = none.
    fn largest_ctx(&self, n_offloaded: usize, most: usize) -> usize {
        let (mut fits, mut too_many) = (0, most.div_ceil(CTX_STEP) + 1);
        while too_many - fits > 1 {
            let half = (fits + too_many) / 2;
            let cache = CacheOptions { n_ctx: half * CTX_STEP, ..self.cache };
            *(if self.fits(n_offloaded, &cache) { &mut fits } else { &mut too_many }) = half;
        }
        fits * CTX_STEP
    }

    /// The most layers up to `most` that fit.
    fn most_layers(&self, most: usize, cache: &CacheOptions) -> Option<usize> {
        (0..=most).rev().find(|&n| self.fits(n, cache))
    }

    /// What was wanted, what there is, and each single change that would do.
    fn refusal(&self, n_offloaded: usize) -> Error {
        let c = &self.cache;
        let memory = |what: &str, bytes: Option<u64>| bytes.map(|b| format!("{what} has {:.0} MiB", b as f64 / MIB));
        let places = self.offload.devices.iter().zip(&self.free).map(|(d, &free)| memory(d.name(), free));
        let places: Vec<String> = places.chain([memory("the CPU", self.cpu_free)]).flatten().collect();
        let mut ways = Vec::new();
        let sure = Fit { reserve: RESERVE, ..self.clone() };
        match sure.largest_ctx(n_offloaded, c.n_ctx) {
            0 => {}
            n => ways.push(format!("-c {n}")),
        }
        if let Some(n) = sure.most_layers(n_offloaded.saturating_sub(1), c).filter(|_| n_offloaded > 0) {
            ways.push(format!("-ngl {n}"));
        }
        let smaller = CacheOptions { ty_k: ggml::Type::Q8_0, ty_v: ggml::Type::Q8_0, ..*c };
        if sure.fits(n_offloaded, &smaller) {
            ways.push("-ctk q8_0 -ctv q8_0".to_owned());
        }
        let batches = std::iter::successors(Some(c.n_ubatch / 2), |n| Some(n / 2)).take_while(|&n| n >= MIN_UBATCH);
        let fits = |&n_ubatch: &usize| sure.fits(n_offloaded, &CacheOptions { n_ubatch, ..*c });
        ways.extend(batches.into_iter().find(fits).map(|n| format!("-ub {n}")));
        let ways =
            if ways.is_empty() { "use a smaller model".to_owned() } else { format!("use {}", ways.join(", or ")) };
        Error::Context {
            what: format!(
                "the KV cache of {} tokens needs {:.0} MiB ({} keys, {} values) beside {:.0} MiB of weights, of which {:.0} MiB leave the file, and up to {:.0} MiB for computing (-ub {}); free: {}; {ways}",
                c.n_ctx,
                self.kv_bytes(c) as f64 / MIB,
                c.ty_k,
                c.ty_v,
                self.weights.total() as f64 / MIB,
                self.held.total() as f64 / MIB,
                self.compute_bytes(c) as f64 / MIB,
                c.n_ubatch,
                places.join(", "),
            ),
        }
    }
}

/// Where layers live, and the size of the context: what was asked for if it fits, else, as far as nothing was asked for, what does.
///
/// # Errors
/// When it does not fit; the message says what would.
pub fn fit(
    args: &HighArgs,
    gguf: &Gguf,
    hp: &Hparams,
    devices: Vec<Device>,
    notice: &mut dyn FnMut(String),
) -> Result<(Offload, usize)> {
    let (low, asked) = (&args.low, &args.low.devices);
    // llama.cpp rounds the context up, too.
    let trained_for = hp.n_ctx_train.min(hp.n_pos_max);
    let want = if low.n_ctx == 0 { trained_for } else { low.n_ctx.next_multiple_of(CTX_STEP) };
    let free: Vec<Option<u64>> = devices.iter().map(|d| Some(d.memory().0 as u64).filter(|&n| n > 0)).collect();
    let by_memory = || free.iter().map(|f| f.map_or(1.0, |f| f as f64)).collect::<Vec<_>>();
    let mut shares = if asked.shares.is_empty() { by_memory() } else { asked.shares.clone() };
    shares.resize(devices.len(), 0.0);
    let (is_mapped, placement) = (low.load_mode != LoadMode::Read, Placement::new(low.repack));
    let fit = Fit {
        asked,
        weights: WeightBytes::of(gguf, hp.n_layer, |_, _| true),
        held: WeightBytes::of(gguf, hp.n_layer, |t, as_output| match is_mapped {
            true => placement.copies(t, as_output),
            false => !as_output || placement.copies(t, true),
        }),
        hp,
        explicit: low.flash_attn == OnOffAuto::Off
            || by_name(&low.kv_method, &method_options(args))?.needs().attention_mass,
        cache: CacheOptions {
            n_ctx: want,
            n_ubatch: low.n_ubatch,
            ty_k: cache_type(low.cache_type_k)?,
            ty_v: cache_type(low.cache_type_v)?,
        },
        free,
        cpu_free: ggml::available_bytes(),
        addresses: ggml::addressable_bytes(),
        reserve: 0,
        shares,
        offload: Offload {
            overrides: overrides(asked, &devices)?,
            devices,
            kv_on_cpu: asked.kv_on_cpu,
            ops_stay: asked.ops_stay,
            ..Offload::default()
        },
    };
    let all = hp.n_layer + 1;
    let most = usize::try_from(asked.n_layers).map_or(all, |n| n.min(all));
    let most = if fit.offload.devices.is_empty() { 0 } else { most };
    let (may_shrink, is_auto) = (low.n_ctx == 0 && asked.fit, asked.n_layers == -1 && asked.fit);
    let least_ctx = if may_shrink { asked.min_ctx.next_multiple_of(CTX_STEP).min(want) } else { want };
    let least = CacheOptions { n_ctx: least_ctx, ..fit.cache };
    let n_offloaded = match fit.fits(most, &least) {
        true => most,
        false if is_auto => fit.most_layers(most, &least).ok_or_else(|| fit.refusal(most))?,
        false => return Err(fit.refusal(most)),
    };
    let n_ctx = if fit.fits(n_offloaded, &fit.cache) { want } else { fit.largest_ctx(n_offloaded, want) };
    if n_offloaded < most {
        notice(format!("{n_offloaded} of {all} layers are on devices; more would not fit their memory"));
    }
    if n_ctx < want {
        notice(format!(
            "context reduced from {want} to {n_ctx} tokens: the KV cache of {want} needs {:.0} MiB, which do not fit",
            fit.kv_bytes(&fit.cache) as f64 / MIB
        ));
    }
    Ok((fit.split(n_offloaded), n_ctx))
}

fn overrides(asked: &Devices, devices: &[Device]) -> Result<Vec<(Regex, Option<usize>)>> {
    let place = |name: &str| match devices.iter().position(|d| d.name() == name || d.buffer_type().name() == name) {
        None if name == "CPU" => Ok(None),
        None => {
            let known: Vec<&str> = ["CPU"].into_iter().chain(devices.iter().map(|d| d.name())).collect();
            Err(Error::Usage(format!("-ot: no device in use is named '{name}'; there are {}", known.join(", "))))
        }
        found => Ok(found),
    };
    let row = |(pattern, name): &(String, String)| {
        let pattern = Regex::new(pattern).map_err(|e| Error::Usage(format!("-ot: {e}")))?;
        Ok((pattern, place(name)?))
    };
    asked.overrides.iter().map(row).collect()
}
