//! The binary `postrider`.

fn main() {}
