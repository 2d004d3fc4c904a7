//! What the documentation tells people to type can be typed: every command in a shell block of `README.md` and `docs/` is
//! parsed as the binary would, and every `postrider …` in running text names a command that there is.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Command, CommandFactory};

use crate::Arguments;

/// Every page for people.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md"), root.join("CHANGELOG.md")];
    let mut left = vec![root.join("docs")];
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

/// The commands of shell blocks, and the `code` of running text.
fn commands(text: &str) -> (Vec<String>, Vec<String>) {
    let (mut typed, mut named) = (Vec::new(), Vec::new());
    let mut block: Option<String> = None;
    let mut joined = String::new();
    for line in text.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = if block.is_some() { None } else { Some(language.to_owned()) };
            continue;
        }
        match block.as_deref() {
            None => named.extend(line.split('`').skip(1).step_by(2).map(str::to_owned)),
            Some(language) => {
                let shell = match language.split([',', ' ']).next().unwrap_or_default() {
                    "sh" | "bash" => Some(line.trim()),
                    // Beside the commands there is what they print; a command may go on over several lines.
                    "console" if joined.is_empty() => line.trim().strip_prefix("$ "),
                    "console" => Some(line.trim()),
                    _ => None,
                };
                let Some(shell) = shell else { continue };
                joined.push_str(shell);
                match joined.strip_suffix('\\') {
                    Some(open) => joined = open.to_owned(),
                    None => typed.push(std::mem::take(&mut joined)),
                }
            }
        }
    }
    (typed, named)
}

/// The words of a simple command, up to where the shell would begin another.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in command.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => words.extend(word.take()),
            (None, '|' | '>' | '<' | ';' | '&') => break,
            (None, '#') if word.is_none() => break,
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn shell_blocks_can_be_typed() {
    let mut checked = 0;
    for page in pages() {
        for command in commands(&fs::read_to_string(&page).unwrap()).0 {
            // Settings before the command, as in `RUST_LOG=debug postrider run`.
            let words: Vec<String> = words(&command).into_iter().skip_while(|word| word.contains('=')).collect();
            if words.first().is_none_or(|first| first != "postrider") {
                continue;
            }
            checked += 1;
            if let Err(error) = Arguments::command().try_get_matches_from(&words) {
                let asked = matches!(
                    error.kind(),
                    clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion
                );
                assert!(asked, "{}: `{command}`: {error}", page.display());
            }
        }
    }
    assert!(checked > 40, "only {checked} commands were found");
}

#[test]
fn commands_in_running_text_exist() {
    let mut checked = 0;
    for page in pages() {
        for code in commands(&fs::read_to_string(&page).unwrap()).1 {
            let words = words(&code);
            let mut words = words.iter();
            if words.next().is_none_or(|first| first != "postrider") {
                continue;
            }
            checked += 1;
            let mut known: Command = Arguments::command();
            for word in words.take_while(|word| word.bytes().all(|b| b.is_ascii_lowercase())) {
                if !known.has_subcommands() {
                    break;
                }
                let next = known.find_subcommand(word).cloned();
                known = next.unwrap_or_else(|| panic!("{}: `{code}`: there is no `{word}`", page.display()));
            }
        }
    }
    assert!(checked > 10, "only {checked} commands were found");
}
