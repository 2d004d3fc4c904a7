//! Transcripts in the documentation are run. Every block marked `console` holds commands behind `$ ` and what they print;
//! the commands of a page are typed one after the other, in an empty directory, with the real binary on the path.
//!
//! - A block marked `toml file=NAME` (or any other language) is written to that file when the page comes to it.
//! - `command &` goes on in the background until the end of the page; `kill %1` ends all that do, and waits for it.
//! - Ids, instants and spans of time need not be those of the page. An id of the page stands for the one that was really
//!   printed in its place, also in later commands. A line `...` stands for any number of lines.
//! - What is only looked at (`status`, `why`, `cat`) may become true a moment later and is asked again.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    alerts::docs,
    support::{Daemon, Workplace},
};

/// Far longer than anything of a page takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Commands that change nothing.
const LOOKS: [&str; 5] = ["postrider status", "postrider why", "postrider message", "postrider dead list", "cat "];

/// One thing to do.
enum Step {
    Write { name: String, text: String },
    Type { command: String, prints: Vec<String> },
}

/// Every page for people, and the readme.
pub(crate) fn pages() -> Vec<PathBuf> {
    let mut pages = vec![docs().join("../README.md")];
    let mut left = vec![docs()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// The fenced blocks of a page: what stands behind the fence, and the lines.
pub(crate) fn blocks(page: &Path) -> Vec<(String, Vec<String>)> {
    let text = fs::read_to_string(page).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<(String, Vec<String>)> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(language), None) => open = Some((language.to_owned(), Vec::new())),
            (None, Some((language, mut lines))) => {
                lines.push(line.to_owned());
                open = Some((language, lines));
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a block is not closed", page.display());
    blocks
}

fn steps(page: &Path) -> Vec<Step> {
    let mut steps = Vec::new();
    for (language, lines) in blocks(page) {
        if let Some((_, name)) = language.split_once(" file=") {
            steps.push(Step::Write { name: name.to_owned(), text: lines.join("\n") + "\n" });
        } else if language == "console" {
            for line in lines {
                match (line.strip_prefix("$ "), steps.last_mut()) {
                    (Some(command), _) => steps.push(Step::Type { command: command.to_owned(), prints: Vec::new() }),
                    (None, Some(Step::Type { prints, .. })) => prints.push(line),
                    (None, _) => panic!("{}: output before a command: {line}", page.display()),
                }
            }
        }
    }
    steps
}

#[test]
fn pages_print_what_they_say() {
    let mut typed = 0;
    for page in pages() {
        let steps = steps(&page);
        if steps.iter().any(|step| matches!(step, Step::Type { .. })) {
            typed += Session::new(&page).run(&steps);
        }
    }
    assert!(typed >= 20, "only {typed} commands were found");
}

/// A page that is being typed.
struct Session<'a> {
    page: &'a Path,
    place: Workplace,
    background: Vec<Daemon>,
    /// Ids of the page, and those that were really printed.
    ids: BTreeMap<String, String>,
}

impl<'a> Session<'a> {
    fn new(page: &'a Path) -> Self {
        Self { page, place: Workplace::new(), background: Vec::new(), ids: BTreeMap::new() }
    }

    /// Types everything; answers how many commands that were.
    fn run(mut self, steps: &[Step]) -> usize {
        let mut typed = 0;
        for step in steps {
            match step {
                Step::Write { name, text } => self.place.write(name, text),
                Step::Type { command, prints } => {
                    typed += 1;
                    self.step(command, prints);
                }
            }
        }
        self.end_background();
        typed
    }

    fn step(&mut self, command: &str, prints: &[String]) {
        let really = self.ids.iter().fold(command.to_owned(), |text, (shown, id)| text.replace(shown, id));
        if let Some(background) = really.strip_suffix('&') {
            let log = fs::File::create(self.place.path("background.log")).unwrap();
            let child = self.shell(&format!("exec {background}")).stdout(Stdio::null()).stderr(log).spawn().unwrap();
            return self.background.push(Daemon::around(child));
        }
        if really == "kill %1" {
            return self.end_background();
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self.shell(&really).output().unwrap();
            let told = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            let lines: Vec<&str> = told.lines().collect();
            if same(prints, &lines) {
                return self.learn(prints, &lines);
            }
            let again = LOOKS.iter().any(|look| command.starts_with(look)) && Instant::now() < deadline;
            let (page, expected) = (self.page.display(), prints.join("\n"));
            assert!(again, "{page}: `{command}`\n--- the page says\n{expected}\n--- it prints\n{told}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn end_background(&mut self) {
        for mut daemon in self.background.drain(..) {
            daemon.signal(Signal::TERM);
            assert!(daemon.wait().success(), "{}: what ran in the background failed", self.page.display());
        }
    }

    /// As somebody would type it, with nothing of ours in the environment.
    fn shell(&self, command: &str) -> Command {
        let binary = Path::new(env!("CARGO_BIN_EXE_postrider")).parent().unwrap().display().to_string();
        let path = format!("{binary}:{}", std::env::var("PATH").unwrap_or_default());
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(self.place.path("")).env("PATH", path).stdin(Stdio::null());
        for name in ["RUST_LOG", "DATABASE_URL"] {
            shell.env_remove(name);
        }
        shell
    }

    /// Which id of the page is which.
    fn learn(&mut self, prints: &[String], lines: &[&str]) {
        for (shown, printed) in prints.iter().zip(lines) {
            let pairs = shown.split_whitespace().zip(printed.split_whitespace());
            for (shown, printed) in pairs.filter(|(shown, printed)| is_id(shown) && is_id(printed)) {
                self.ids.insert(shown.to_owned(), printed.to_owned());
            }
        }
    }
}

/// Whether what was printed is what the page says.
fn same(prints: &[String], lines: &[&str]) -> bool {
    let Some((first, rest)) = prints.split_first() else { return lines.is_empty() };
    if first == "..." {
        return (0..=lines.len()).any(|skipped| same(rest, &lines[skipped..]));
    }
    lines.split_first().is_some_and(|(line, others)| plain(first) == plain(line) && same(rest, others))
}

/// A line without what differs from run to run. Columns may have another width.
fn plain(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in line.split_whitespace() {
        let word = if is_span(word) { "SPAN".to_owned() } else { without_instants(&without_ids(word)) };
        // `4m 10s` is one span.
        if word != "SPAN" || words.last().is_none_or(|last| last != "SPAN") {
            words.push(word);
        }
    }
    words.join(" ")
}

fn is_id(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() == 36
        && bytes.iter().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => *b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

/// `0.4s`, `10ms`, `4m`.
fn is_span(word: &str) -> bool {
    let unit = word.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    unit.len() < word.len() && ["us", "ms", "s", "m", "h", "d"].contains(&unit)
}

fn replace(text: &str, length: usize, is: impl Fn(&str) -> bool, by: &str) -> String {
    let mut rest = text;
    let mut replaced = String::new();
    while let Some(first) = rest.chars().next() {
        if rest.get(..length).is_some_and(&is) {
            replaced.push_str(by);
            rest = &rest[length..];
        } else {
            replaced.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    replaced
}

fn without_ids(text: &str) -> String {
    replace(text, 36, is_id, "ID")
}

/// `2026-11-16T04:00:16.320496Z`.
fn without_instants(text: &str) -> String {
    let form = "dddd-dd-ddTdd:dd:dd.ddddddZ";
    let fits =
        |text: &str| text.bytes().zip(form.bytes()).all(|(b, f)| if f == b'd' { b.is_ascii_digit() } else { b == f });
    replace(text, form.len(), fits, "INSTANT")
}

#[test]
fn what_differs_from_run_to_run_is_not_compared_and_everything_else_is() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (page, other) = ("01a1e283-45bf-765c-93f0-2703320c6ee8", "01a1e283-48d4-773d-910a-1cd0b878aaca");
    let good = [
        (format!("a  {page} 4m 10s"), format!("a {other}   0.0s")),
        ("{\"at\":\"2026-11-16T04:00:16.320496Z\"}".to_owned(), "{\"at\":\"2027-01-02T05:06:07.000000Z\"}".to_owned()),
        ("first\n...\nlast".to_owned(), "first\nmore\nand more\nlast".to_owned()),
    ];
    for (page, printed) in good {
        assert!(same(&lines(&page), &printed.lines().collect::<Vec<_>>()), "{page} / {printed}");
    }
    for (page, printed) in [("a", "b"), ("a", "a\nb"), ("a\nb", "a"), ("a\n...\nz", "a\nb"), ("", "a")] {
        assert!(!same(&lines(page), &printed.lines().collect::<Vec<_>>()), "{page} / {printed}");
    }
}

/// Those of the library's crate are compiled there, as doc tests; no page may be forgotten.
#[test]
fn every_page_with_rust_code_is_compiled() {
    let guides = fs::read_to_string(docs().join("../crates/postrider/src/guides.rs")).unwrap();
    let root = docs().parent().unwrap().to_owned();
    for page in pages() {
        if blocks(&page).iter().any(|(language, _)| language.starts_with("rust")) {
            let name = page.strip_prefix(&root).unwrap_or(&page).display().to_string().replace("docs/../", "");
            assert!(guides.contains(&format!("/{name}\"")), "{name} is not in guides.rs");
        }
    }
}
