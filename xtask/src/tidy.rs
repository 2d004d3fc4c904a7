//! Tidiness, as a test: the tree holds no forgotten work, no dead links, no unexplained file and nobody's home directory.
//!
//! Each rule is a function of a file's text, and each finding names file and line.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};

/// Directories that are not ours to judge.
const SKIPPED: [&str; 2] = ["target", "node_modules"];

/// What must not stay in code. Written in two halves, so that this file passes.
const UNFINISHED: [&str; 3] = [concat!("to", "do!("), concat!("db", "g!("), concat!("#[ign", "ore")];

/// How a path on somebody's own machine begins.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/"), concat!("C:\\", "Users")];

/// Checks every file below `root`.
pub(crate) fn run(root: &Path) -> Result<()> {
    eprintln!("[tidy] every file of the tree");
    let mut findings = Vec::new();
    for path in files(root)? {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let found = inspect(&path, &text).into_iter().map(|(line, what)| format!("{shown}:{line}: {what}"));
        findings.extend(found);
    }
    if !findings.is_empty() {
        bail!("`tidy` found:\n{}", findings.join("\n"));
    }
    Ok(())
}

/// Every file with text that people wrote, sorted.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(directory) = left.pop() {
        let entries = fs::read_dir(&directory).with_context(|| format!("read {}", directory.display()))?;
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with('.') || name.starts_with("postrider-demo") || SKIPPED.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                left.push(path);
            } else if ["rs", "md", "toml", "sql", "sh", "yaml"]
                .iter()
                .any(|e| path.extension().is_some_and(|x| x == *e))
            {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

type Finding = (usize, String);

fn inspect(path: &Path, text: &str) -> Vec<Finding> {
    let mut findings = machine_paths(text);
    if path.extension().is_some_and(|e| e == "rs") {
        findings.extend(unfinished(text));
        findings.extend(undocumented(text));
    }
    if path.extension().is_some_and(|e| e == "md") {
        let exists = |target: &str| path.parent().is_some_and(|directory| directory.join(target).exists());
        findings.extend(broken_links(text, exists));
    }
    findings
}

fn machine_paths(text: &str) -> Vec<Finding> {
    find_any(text, &MACHINE_PATHS, "a path of one machine")
}

fn unfinished(text: &str) -> Vec<Finding> {
    find_any(text, &UNFINISHED, "unfinished work")
}

fn find_any(text: &str, needles: &[&str], what: &str) -> Vec<Finding> {
    let lines = text.lines().enumerate();
    let hit = |line: &str| needles.iter().find(|needle| line.contains(**needle)).map(|n| format!("{what}: `{n}`"));
    lines.filter_map(|(index, line)| Some((index + 1, hit(line)?))).collect()
}

/// The first lines of a file say what it is for.
fn undocumented(text: &str) -> Option<Finding> {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("#!"));
    let documented = first.is_some_and(|line| line.starts_with("//!"));
    (!documented).then(|| (1, "no module docs (`//!`)".to_owned()))
}

/// Relative links of a Markdown text whose target is not there. What stands in code is not a link.
fn broken_links(text: &str, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let dead = links(line).into_iter().filter(|target| !exists(target));
            findings.extend(dead.map(|target| (index + 1, format!("a link to nothing: `{target}`"))));
        }
    }
    findings
}

/// Targets of `[text](target)` on one line that are files of the tree.
fn links(line: &str) -> Vec<&str> {
    let prose: Vec<&str> = line.split('`').step_by(2).collect();
    let mut targets = Vec::new();
    // A link whose text is code is cut in two by the split; its target then begins the piece behind the code.
    for piece in prose {
        let mut rest = piece;
        while let Some(start) = rest.find("](") {
            let Some(end) = rest[start + 2..].find(')') else { break };
            let target = &rest[start + 2..start + 2 + end];
            let file = target.split(['#', ' ']).next().unwrap_or_default();
            if !file.is_empty() && !file.contains(':') {
                targets.push(file);
            }
            rest = &rest[start + 2 + end..];
        }
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, text: &str) -> Vec<Finding> {
        inspect(Path::new(name), text)
    }

    #[test]
    fn a_clean_file_has_no_findings() {
        assert_eq!(found("a.rs", "//! What it is for.\n\nfn main() {}\n"), []);
    }

    #[test]
    fn forgotten_work_is_found_with_its_line() {
        for needle in UNFINISHED {
            let findings = found("a.rs", &format!("//! Docs.\nfn f() {{\n    {needle}\n}}\n"));
            assert_eq!(findings, [(3, format!("unfinished work: `{needle}`"))]);
        }
    }

    #[test]
    fn paths_of_one_machine_are_found_in_any_file() {
        for needle in MACHINE_PATHS {
            let findings = found("a.md", &format!("see {needle}me/notes"));
            assert_eq!(findings, [(1, format!("a path of one machine: `{needle}`"))]);
        }
    }

    #[test]
    fn a_file_without_module_docs_is_found() {
        assert_eq!(found("a.rs", "fn main() {}\n"), [(1, "no module docs (`//!`)".to_owned())]);
        assert_eq!(found("a.rs", ""), [(1, "no module docs (`//!`)".to_owned())]);
    }

    #[test]
    fn relative_links_must_lead_somewhere() {
        let text = "[a](here.md) and [b](gone.md#part)\n[`c`](gone.rs)\n[web](https://x.invalid) [top](#top)\n\
                    `[code](gone.md)`\n```\n[code](gone.md)\n```\n";
        let findings = broken_links(text, |target| target == "here.md");
        let expected = [(1, "a link to nothing: `gone.md`".to_owned()), (2, "a link to nothing: `gone.rs`".to_owned())];
        assert_eq!(findings, expected);
    }
}
