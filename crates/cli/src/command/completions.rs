//! `postrider completions`: a script for a shell, made of the same description as `--help`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::{
    exit::{Code, Outcome},
    output::print,
};

#[derive(Args)]
pub(crate) struct Arguments {
    /// For which shell.
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::Arguments::command(), "postrider", &mut script);
    print(String::from_utf8_lossy(&script));
    Ok(Code::Done)
}
