//! What gracekv-perplexity and gracekv-eval share: options of their own beside gracekv-run's, the cases of a comparison, exits.

use super::console::{is_closed, Console};
use super::high::{method_name, HighArgs};
use super::low::{LowArgs, Special};
use super::setup::{self, Loaded};
use super::{device, files, help, parse, process, source};
use crate::compress::{self, MAX_RATIO, METHODS};
use crate::error::{one_line, Error, Result};
use crate::eval::{Case, Event, Outcome, Setting};
use crate::ggml;
use crate::pass::Target;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{Stderr, Stdout, Write};
use std::path::Path;
use std::str::FromStr;

/// An option of a tool that gracekv-run does not have, or that means something else there.
pub struct Own {
    /// Its spellings; the first is its name.
    pub names: &'static [&'static str],
    /// Placeholder of its value; empty when it takes none.
    pub hint: &'static str,
    /// Text of the help.
    pub help: &'static str,
}

/// Options of every comparison.
pub const COMPARE: &[Own] = &[
    Own { names: &["--kv-ratio"], hint: "N,..", help: "compare caches that are so many times smaller" },
    Own { names: &["--kv-method"], hint: "NAME,..", help: "by these methods, for example gracekv,snapkv+lookahead; 'list' prints them, 'all' is each plain one (default: gracekv)" },
    Own { names: &["--json"], hint: "FILE", help: "write the results as JSON" },
];

/// The options of a tool as they were given, and gracekv-run's beside them.
pub struct Given {
    own: Vec<(&'static str, OsString)>,
    rest: Vec<OsString>,
}

impl Given {
    /// Separates the options of these tables from the others.
    ///
    /// # Errors
    /// [`Error::Usage`] when a value is missing.
    pub fn separate(args: impl IntoIterator<Item = OsString>, tables: &[&'static [Own]]) -> Result<Self> {
        let mut given = Given { own: Vec::new(), rest: Vec::new() };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let text = arg.to_string_lossy().into_owned();
            let (name, attached) = match text.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(OsString::from(value))),
                _ => (text.as_str(), None),
            };
            let Some(own) = tables.iter().copied().flatten().find(|own| own.names.contains(&name)) else {
                given.rest.push(arg);
                continue;
            };
            let value = match attached {
                Some(value) => value,
                None if own.hint.is_empty() => OsString::new(),
                None => args.next().ok_or_else(|| {
                    Error::Usage(format!("error while handling argument \"{name}\": expected value for argument"))
                })?,
            };
            // A script whose variable is empty does not ask for the default.
            if !own.hint.is_empty() && value.to_string_lossy().trim_matches([',', ' ']).is_empty() {
                return Err(Error::Usage(format!("error while handling argument \"{name}\": its value is empty")));
            }
            given.own.push((own.names[0], value));
        }
        Ok(given)
    }

    /// All values of an option.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &OsString> {
        let name = name.to_owned();
        self.own.iter().filter(move |(n, _)| *n == name).map(|(_, value)| value)
    }

    /// The last value of an option.
    pub fn last(&self, name: &str) -> Option<&OsString> {
        self.all(name).last()
    }

    /// The last value of an option as a number.
    ///
    /// # Errors
    /// [`Error::Usage`] when it is none.
    pub fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        let parse = |v: &OsString| {
            v.to_str().and_then(|v| v.parse().ok()).ok_or_else(|| {
                Error::Usage(format!(
                    "error while handling argument \"{name}\": '{}' is not a number it can take",
                    v.to_string_lossy()
                ))
            })
        };
        self.last(name).map(parse).transpose()
    }

    /// The parts between commas of all values of an option.
    pub fn list(&self, name: &str) -> Vec<String> {
        self.all(name)
            .flat_map(|v| v.to_string_lossy().split(',').map(|x| x.trim().to_owned()).collect::<Vec<_>>())
            .filter(|x| !x.is_empty())
            .collect()
    }

    /// The methods and ratios that are asked for; ratio 1 is the full cache, which every comparison begins with.
    ///
    /// # Errors
    /// [`Error::Usage`] for a ratio below 1 or an unknown method.
    pub fn cases(&self, args: &HighArgs) -> Result<Vec<Case>> {
        let ratio = |text: &String| {
            match text.parse::<f64>() {
            Ok(x) if (1.0..=MAX_RATIO).contains(&x) => Ok(x),
            _ => Err(Error::Usage(format!("error while handling argument \"--kv-ratio\": '{text}' is not a number from 1 to {MAX_RATIO:e}; it says how many times smaller the cache becomes"))),
        }
        };
        let ratios = self.list("--kv-ratio").iter().map(ratio).collect::<Result<Vec<f64>>>()?;
        let options = setup::method_options(args);
        let mut cases = Vec::new();
        for name in self.methods(args)? {
            for &ratio in ratios.iter().filter(|&&r| r > 1.0 || args.low.kv_force) {
                cases.push(Case { method: compress::by_name(&name, &options)?, ratio });
            }
        }
        Ok(cases)
    }

    /// The full names of the methods that are asked for, each once.
    fn methods(&self, args: &HighArgs) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for name in self.list("--kv-method") {
            match name.as_str() {
                // `none` cannot make anything smaller.
                "all" => names.extend(METHODS.iter().map(|m| m.name.to_owned()).filter(|name| name != "none")),
                _ => names.push(method_name(&name, args.low.kv_variant)?),
            }
        }
        if names.is_empty() {
            names.push(args.low.kv_method.clone());
        }
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        Ok(names)
    }
}

/// A program that measures: what it needs beside its options.
pub struct Tool {
    /// Head of the help.
    pub about: &'static str,
    /// Its options.
    pub tables: &'static [&'static [Own]],
    /// Options of llama.cpp's program that it does not have; their text is the reason.
    pub refused: &'static [Own],
    /// Names of options of gracekv-run that it uses beside those that every tool does.
    pub also: &'static [&'static str],
    /// Runs it.
    pub run: fn(&Given, &HighArgs, &Loaded, &mut Console<Stdout, Stderr>) -> Result<()>,
}

impl Tool {
    /// Runs the program with these arguments and gives its exit code.
    pub fn main(&self, args: impl IntoIterator<Item = OsString>) -> i32 {
        // Nothing asks for signals in these programs: each ends them at once.
        let env = |name: &str| std::env::var_os(name);
        let parsed = process::start().and_then(|_| self.separate(args)).and_then(|given| {
            let low = parse::parse_measuring(given.rest.iter().cloned(), &env, self.also)?;
            Ok((given, low))
        });
        let (given, low) = match parsed {
            Ok(parsed) => parsed,
            Err(e) => return process::fail(&e),
        };
        match low.special {
            Some(Special::Help) => return process::print(&self.help()),
            Some(Special::Devices) => return printed(device::list(&low.devices)),
            Some(Special::CacheList) => return printed(source::list(&env)),
            Some(Special::Version) => drop(std::io::stderr().write_all(help::version().as_bytes())),
            _ if given.list("--kv-method").iter().any(|m| m == "list") => return process::print(&help::methods()),
            _ => {
                let open = self.check_files(&given, &low).and_then(|()| Console::open(&low));
                let mut console = match open {
                    Ok(console) => console,
                    Err(e) => return process::fail(&e),
                };
                return match self.start(&given, low, &mut console) {
                    Ok(()) => 0,
                    Err(Error::Io { source, .. }) if is_closed(&source) => 0,
                    Err(e) => {
                        console.clear_progress();
                        let text = e.to_string();
                        console.message(
                            1,
                            if text.starts_with("error") { text } else { format!("error: {text}") }.as_str(),
                        );
                        1
                    }
                };
            }
        }
        0
    }

    /// As [`files::check`], of the options of both programs.
    fn check_files(&self, given: &Given, low: &LowArgs) -> Result<()> {
        fn of<'a>(given: &'a Given, names: &'a [&'static str]) -> impl Iterator<Item = files::Named<'a>> {
            let named = given.own.iter().filter(|(name, _)| names.contains(name));
            // Names that are no text are one file each.
            named.flat_map(|(name, value)| match value.to_str() {
                Some(list) => list.split(',').map(|path| (*name, Path::new(path))).collect(),
                None => vec![(*name, Path::new(value))],
            })
        }
        let inputs = files::inputs(low).into_iter().chain(of(given, &["-f", "--data", "--haystack", "--kv-report"]));
        let base: &[_] = if given.last("--kl-divergence").is_some() { &[] } else { &["--kl-divergence-base"] };
        let results = of(given, &["--json", "--csv", "--plot", "--heat-map"]).chain(of(given, base));
        files::check(&inputs.collect::<Vec<_>>(), &results.chain(files::outputs(low)).collect::<Vec<_>>())
    }

    /// The options, none of which is of those that are refused.
    fn separate(&self, args: impl IntoIterator<Item = OsString>) -> Result<Given> {
        let given = Given::separate(args, &[self.tables, &[self.refused]].concat())?;
        match self.refused.iter().find(|own| given.last(own.names[0]).is_some()) {
            Some(own) => Err(Error::Usage(format!(
                "error while handling argument \"{}\": not supported: {}",
                own.names[0], own.help
            ))),
            None => Ok(given),
        }
    }

    fn start(&self, given: &Given, mut low: LowArgs, console: &mut Console<Stdout, Stderr>) -> Result<()> {
        source::resolve(&mut low, &|name| std::env::var_os(name), console)?;
        let args = HighArgs::new(low)?;
        for warning in &args.low.warnings {
            console.message(2, &format!("warning: {}", one_line(warning)));
        }
        ggml::set_log(args.low.verbosity >= 2);
        process::start_threads(args.n_threads_batch)?;
        given.cases(&args)?;
        console.progress("loading the model");
        let mut notices = Vec::new();
        let loaded = setup::load(&args, &mut |text| notices.push(text))?;
        console.clear_progress();
        notices.iter().for_each(|text| console.message(2, &format!("warning: {}", one_line(text))));
        console.accept_log()?;
        (self.run)(given, &args, &loaded, console)
    }

    fn help(&self) -> String {
        let row = |own: &Own| {
            let head = format!("{} {}", own.names.join(", "), own.hint);
            format!("{head:<39} {}\n", own.help)
        };
        let own: String = self.tables.iter().copied().flatten().map(row).collect();
        format!("{}\n{own}\nand gracekv-run's -m -c -b -ub -t -tb -fa -ctk -ctv --kv-lookahead --kv-sink --kv-window --kv-floor\n--kv-prototypes --kv-variant, with its spellings and meaning (gracekv-run -h)\n", self.about)
    }
}

fn printed(text: Result<String>) -> i32 {
    text.map_or_else(|e| process::fail(&e), |text| process::print(&text))
}

/// What all cases share.
pub fn setting(args: &HighArgs, loaded: &Loaded) -> Setting {
    Setting { pass: setup::pass_options(args, Target::Ratio(1.0)), end_of_text: loaded.tokenizer.eog().collect() }
}

/// Tells on a terminal what comes next and how long it will take.
pub struct Progress {
    start: std::time::Instant,
}

impl Progress {
    /// Starts the clock.
    pub fn start() -> Self {
        Progress { start: std::time::Instant::now() }
    }

    /// Shows what comes next, and how long the rest will take when as many steps are done.
    pub fn step(&self, console: &mut Console<Stdout, Stderr>, what: &str, done: usize, all: usize) {
        let spent = self.start.elapsed().as_secs_f64();
        let left = match done {
            0 => String::new(),
            _ => format!(", {:.1} minutes left", spent / done as f64 * (all - done) as f64 / 60.0),
        };
        console.progress(&format!("{done} of {all}: {what}{left}"));
    }

    /// Shows what an event says; `result` words one result of an item that is done.
    pub fn hear<T>(
        &self,
        console: &mut Console<Stdout, Stderr>,
        event: &Event<T>,
        name: &dyn Fn(usize) -> String,
        result: &dyn Fn(&T) -> String,
    ) {
        match event {
            Event::Step(what, done, all) => self.step(console, what, *done, *all),
            Event::Done(i, outcomes) => {
                let one = |o: &Outcome<T>| format!("{} {} {}", o.name, o.ratio, result(&o.results[*i]));
                let all: Vec<String> = outcomes.iter().map(one).collect();
                console.message(3, &format!("{}: {}", name(*i), all.join(", ")));
            }
        }
    }
}
