//! `postrider reference`: every command as a page of the documentation, from the same description as `--help`.

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::{
    exit::{Code, Outcome, TABLE},
    output::print,
};

pub(crate) fn run() -> Outcome {
    let mut whole = crate::Arguments::command();
    whole.build();
    let mut page = String::from(
        "# Commands\n\nWritten by the code. Every command says the same with `--help`. Results go to standard output, advice \
         and errors to standard\nerror. Which store is meant, is said by `--store`, by the environment or by the file: see\n\
         [operating from the command line](../operate/command-line.md).\n\n",
    );
    page.push_str(&format!("```text\n{TABLE}\n```\n"));
    let status = whole.find_subcommand("status").into_iter().flat_map(Command::get_arguments);
    let of_store: String = status.filter(|arg| is_of_store(arg)).map(row).collect();
    page.push_str(&format!("\n## Which store\n\n| Argument | Meaning |\n|---|---|\n{of_store}"));
    visible(&whole).for_each(|command| describe(command, "postrider", &mut page));
    print(page);
    Ok(Code::Done)
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

fn describe(command: &Command, above: &str, page: &mut String) {
    let name = format!("{above} {}", command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let nouns = visible(command).next().is_some();
    let own: Vec<&Arg> = command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_id() != "help").collect();
    let level = if above == "postrider" { "##" } else { "###" };
    page.push_str(&format!("\n{level} {name}\n\n{}\n", cell(&about)));
    let (of_store, own): (Vec<&Arg>, Vec<&Arg>) = own.into_iter().partition(|arg| is_of_store(arg));
    if !own.is_empty() {
        page.push_str("\n| Argument | Meaning |\n|---|---|\n");
        own.iter().for_each(|arg| page.push_str(&row(arg)));
    }
    if !of_store.is_empty() {
        page.push_str("\nAlso [which store](#which-store).\n");
    }
    if let Some(after) = command.get_after_help() {
        page.push_str(&format!("\n```text\n{after}\n```\n"));
    }
    if nouns {
        visible(command).for_each(|verb| describe(verb, &name, page));
    }
}

/// Nearly every command has them, so they are listed once.
fn is_of_store(arg: &Arg) -> bool {
    arg.get_help_heading() == Some(super::store::HEADING)
}

fn row(arg: &Arg) -> String {
    let value = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string).unwrap_or_default();
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let shown = match arg.get_long() {
        Some(long) if takes_value => format!("--{long} {value}"),
        Some(long) => format!("--{long}"),
        None => value,
    };
    let mut meaning = cell(&arg.get_help().map(ToString::to_string).unwrap_or_default());
    let choices: Vec<String> =
        arg.get_possible_values().iter().map(|choice| format!("`{}`", choice.get_name())).collect();
    if takes_value && !choices.is_empty() {
        meaning.push_str(&format!(" One of {}.", choices.join(", ")));
    }
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    if takes_value && !defaults.is_empty() {
        meaning.push_str(&format!(" Default: `{}`.", defaults.join(", ")));
    }
    format!("| `{shown}` | {meaning} |\n")
}

/// A sentence that ends, on one line, without what a table would take for its own.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    if line.is_empty() || line.ends_with(['.', '!', '?']) { line } else { format!("{line}.") }
}
