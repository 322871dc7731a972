//! The English datasets of LongBench (arXiv 2308.14508): what is asked of the model, in our words, and how it is scored.
//!
//! Source: LongBench `config/dataset2prompt.json` and `dataset2maxlen.json` for what a prompt has to say and how long the
//! answer may be, `eval.py` for the metrics, and `pred.py` for which datasets take no chat template.
//! Deviation: the Chinese datasets need word segmentation, and are refused.

use super::metrics::Metric;

/// How a dataset is asked.
pub struct Dataset {
    /// Its name in the field `dataset`.
    pub name: &'static str,
    /// What stands before the context.
    pub before: &'static str,
    /// What stands after it; `{input}` is the question.
    pub after: &'static str,
    /// How the answer begins.
    pub answer_prefix: &'static str,
    /// How the answer is scored.
    pub metric: Metric,
    /// Tokens within which the answer must come.
    pub n_answer: usize,
    /// Whether the context is a text to work on; solved examples and code are to be continued, without a chat template.
    pub chat: bool,
    /// Whether only the first line of the answer counts.
    pub one_line: bool,
}

const PLAIN: Dataset = Dataset {
    name: "",
    before: "",
    after: "{input}",
    answer_prefix: "",
    metric: Metric::F1,
    n_answer: 64,
    chat: true,
    one_line: false,
};
const QUESTION: &str =
    "\n\nAnswer the question about the text above. Give only the answer, in a few words.\n\nQuestion: {input}";
const ONE_TEXT: Dataset = Dataset {
    before: "Read the following text and then answer a question about it in a few words.\n\n",
    after: QUESTION,
    answer_prefix: "Answer:",
    ..PLAIN
};
const PASSAGES: Dataset = Dataset {
    before: "Read the following passages. Then answer a question about them in a few words.\n\n",
    n_answer: 32,
    ..ONE_TEXT
};
const SUMMARY: Dataset = Dataset { answer_prefix: "Summary:", metric: Metric::RougeL, n_answer: 512, ..PLAIN };
const EXAMPLES: Dataset = Dataset { chat: false, one_line: true, ..PLAIN };
const CODE: Dataset = Dataset {
    before: "Continue the following code.\n",
    after: "{input}Next line of code:\n",
    metric: Metric::CodeSim,
    chat: false,
    ..PLAIN
};

/// Every dataset that can be read.
pub const DATASETS: [Dataset; 16] = [
    Dataset { name: "narrativeqa", n_answer: 128, ..ONE_TEXT },
    Dataset {
        name: "qasper",
        before: "Read the following scientific article and then answer a question about it.\n\n",
        after: "\n\nAnswer the question about the article above, in as few words as possible. Write 'yes', 'no' or 'unanswerable' where that is the answer.\n\nQuestion: {input}",
        n_answer: 128,
        ..ONE_TEXT
    },
    Dataset { name: "multifieldqa_en", ..ONE_TEXT },
    Dataset { name: "hotpotqa", ..PASSAGES },
    Dataset { name: "2wikimqa", ..PASSAGES },
    Dataset { name: "musique", ..PASSAGES },
    Dataset {
        name: "gov_report",
        before: "Summarize the following government report in one page.\n\nReport:\n",
        after: "\n\nNow summarize the report above in one page.",
        ..SUMMARY
    },
    Dataset {
        name: "qmsum",
        before: "Read the following transcript of a meeting and then answer a request about it.\n\nTranscript:\n",
        after: "\n\nNow answer the request about the meeting above in a few sentences.\n\nRequest: {input}",
        answer_prefix: "Answer:",
        ..SUMMARY
    },
    Dataset {
        name: "multi_news",
        before: "Summarize the following news in one page.\n\nNews:\n",
        after: "\n\nNow summarize all of the news above in one page.",
        ..SUMMARY
    },
    Dataset {
        name: "trec",
        before: "Name the type of the last question, as these examples do.\n\n",
        metric: Metric::Classification,
        ..EXAMPLES
    },
    Dataset {
        name: "triviaqa",
        before: "Answer the last question from the passage before it, with nothing but the answer, as these examples do.\n\n",
        n_answer: 32,
        ..EXAMPLES
    },
    Dataset {
        name: "samsum",
        before: "Summarize the last dialogue in a few short sentences, as these examples do.\n\n",
        metric: Metric::RougeL,
        n_answer: 128,
        ..EXAMPLES
    },
    Dataset {
        name: "passage_count",
        before: "Some of the following paragraphs are repeated. Count how many different paragraphs there are.\n\n",
        after: "\n\nHow many paragraphs are there when repeated ones count once? Give only the number.",
        answer_prefix: "The number of different paragraphs is",
        metric: Metric::Count,
        n_answer: 32,
        ..PLAIN
    },
    Dataset {
        name: "passage_retrieval_en",
        before: "Read the following paragraphs. Then decide which of them a summary belongs to.\n\n",
        after: "\n\nSummary: {input}\n\nWhich paragraph does this summary belong to? Answer like 'Paragraph 1' or 'Paragraph 2'.",
        answer_prefix: "The summary belongs to",
        metric: Metric::Retrieval,
        n_answer: 32,
        ..PLAIN
    },
    Dataset { name: "lcc", ..CODE },
    Dataset { name: "repobench-p", ..CODE },
];
