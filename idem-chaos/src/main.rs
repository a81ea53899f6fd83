//! A fault run: real processes, a real Redis, faults made on purpose, and a checker of the promises.

fn main() {}
