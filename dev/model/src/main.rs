//! Explores the model, and each mutant, and prints the figures as tables.
//!
//! `cargo run --release -p idem-model` explores what the tests do. `-- large`: with one fault more.
//! `-- mutants`: the mutants alone, from one on if it is named. `-- trace`: how P10 breaks where
//! requests arrive in any order.

use std::io::{Write as _, stdout};

use idem_model::{Bounds, Found, Mutant, Network, Promise, explore};

fn main() -> std::io::Result<()> {
    let wish = std::env::args().nth(1);
    let wishes = |what: &str| wish.as_deref() == Some(what);
    let any_order = Bounds {
        network: Network::AnyOrder,
        ..Bounds::SMALL
    };
    if wishes("trace") {
        let found = explore(any_order, None, &[Promise::P10]);
        return writeln!(
            stdout(),
            "{}",
            found.map(|found| found.steps()).unwrap_or_default()
        );
    }
    let largest = if wishes("large") {
        Bounds::LARGE
    } else {
        Bounds::SMALL
    };
    writeln!(
        stdout(),
        "| explored | states | unique | depth | time | promises |\n| --- | --- | --- | --- | --- \
         | --- |"
    )?;
    let rejects = Bounds {
        take_over: false,
        ..largest
    };
    let issued = Bounds {
        issued: true,
        ..largest
    };
    if !wishes("mutants") {
        row("as it is", explore(largest, None, &[]))?;
        row("`abandoned = reject`", explore(rejects, None, &[]))?;
        row("an issued token", explore(issued, None, &[]))?;
        row("fingerprints", explore(Bounds::PRINTS, None, &[]))?;
        row(
            "questions, and two attempts at most",
            explore(Bounds::ASKS, None, &[]),
        )?;
        row("steps", explore(Bounds::STEPS, None, &[]))?;
        row(
            "an operator, and two attempts at most",
            explore(Bounds::OPERATED, None, &[]),
        )?;
        row(
            "`abandoned = reject` for a time",
            explore(Bounds::REJECTED_FOR_A_TIME, None, &[]),
        )?;
        row("requests in any order", explore(any_order, None, &[]))?;
    }
    let from = std::env::args().nth(2).unwrap_or_default();
    let mut mutants = 0;
    let mut rejected = 0;
    for mutant in Mutant::ALL
        .iter()
        .skip_while(|mutant| !format!("{mutant:?}").starts_with(&from))
    {
        let found = explore(mutant.bounds(), Some(*mutant), &[mutant.breaks()]);
        mutants += 1;
        rejected += usize::from(
            found
                .as_ref()
                .is_some_and(|found| found.breaks(mutant.breaks())),
        );
        row(&format!("`{mutant:?}`"), found)?;
    }
    writeln!(
        stdout(),
        "\n{rejected} of {mutants} mutants are rejected: each breaks the promise that it is to \
         break"
    )
}

fn row(what: &str, found: Option<Found>) -> std::io::Result<()> {
    match found {
        Some(found) => writeln!(stdout(), "| {what} | {found} |"),
        None => writeln!(stdout(), "| {what} | no model |"),
    }
}
