//! The workshop.

fn main() {}
