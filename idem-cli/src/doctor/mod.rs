//! `doctor`: what would break a promise in this store, each with its remedy.

mod clock;
mod redis;
mod sql;

use std::io::Write as _;

use idem_core::StoreErrorKind;
use idem_core::record::RecordId;
use idem_core::{Key, StoreError};
use serde_json::{Value, json};

use crate::args::Args;
use crate::failure::{DONE, FOUND, Failure};
use crate::hints::{Missing, missing_table};
use crate::print;
use crate::store::{AnyStore, table_of};

/// The findings of the doctor.
#[derive(Default)]
pub(crate) struct Report {
    /// Settings that are right.
    fine: Vec<String>,
    /// A remark for the operator, although no promise is broken.
    notes: Vec<String>,
    findings: Vec<Finding>,
}

/// A finding that would break a promise.
struct Finding {
    what: String,
    remedy: String,
}

impl Report {
    fn fine(&mut self, what: impl Into<String>) {
        self.fine.push(what.into());
    }

    fn note(&mut self, what: impl Into<String>) {
        self.notes.push(what.into());
    }

    fn found(&mut self, what: impl Into<String>, remedy: impl Into<String>) {
        self.findings.push(Finding {
            what: what.into(),
            remedy: remedy.into(),
        });
    }

    /// Adds an error whose text also has the remedy, such as that of a refused server.
    fn found_error(&mut self, error: &StoreError) {
        let text = error.to_string();
        let (what, remedy) = text
            .split_once("; ")
            .or_else(|| text.split_once(". "))
            .unwrap_or((&text, "see the message"));
        self.found(what, remedy);
    }
}

pub(crate) async fn run(args: &Args) -> Result<u8, Failure> {
    let mut report = Report::default();
    match AnyStore::open(args).await {
        Ok(store) => examine(&store, args, &mut report).await?,
        // The store refuses to use the server. A server that does not answer cannot be examined.
        Err(Failure::Store(error)) if error.kind() == StoreErrorKind::Refused => {
            report.found_error(&error);
        }
        Err(failure) => return Err(failure),
    }
    let code = if report.findings.is_empty() {
        DONE
    } else {
        FOUND
    };
    if args.json {
        print::json(&as_json(&report))?;
    } else {
        as_text(&report)?;
    }
    Ok(code)
}

async fn examine(store: &AnyStore, args: &Args, report: &mut Report) -> Result<(), Failure> {
    match store {
        AnyStore::Redis(store) => redis::examine(store, report).await,
        AnyStore::Postgres(_, pool) => {
            table(store, args, report).await?;
            sql::postgres(pool, table_of(args), report).await
        }
        AnyStore::MySql(_, pool) => {
            table(store, args, report).await?;
            sql::mysql(pool, table_of(args), report).await
        }
        AnyStore::Sqlite(_, pool) => {
            table(store, args, report).await?;
            sql::sqlite(pool, table_of(args), report).await
        }
    }
}

/// Checks by a first step of the store that the table exists and has this version.
async fn table(store: &AnyStore, args: &Args, report: &mut Report) -> Result<(), Failure> {
    let nothing = Key::encode("doctor").and_then(|key| RecordId::new("idem.doctor", &key));
    let Some(id) = nothing else { return Ok(()) };
    match store.inspect(&id).await {
        Ok(_) => report.fine("the table is there, and of this version"),
        Err(error)
            if matches!(
                error.kind(),
                StoreErrorKind::Refused | StoreErrorKind::Unreadable
            ) =>
        {
            match missing_table(store, args).await {
                Some(Missing { what, remedy }) => report.found(what, remedy),
                None => report.found_error(&error),
            }
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn as_json(report: &Report) -> Value {
    let finding = |finding: &Finding| json!({ "what": finding.what, "remedy": finding.remedy });
    json!({
        "findings": report.findings.iter().map(finding).collect::<Vec<_>>(),
        "notes": report.notes,
        "fine": report.fine,
    })
}

fn as_text(report: &Report) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for fine in &report.fine {
        writeln!(out, "ok       {fine}")?;
    }
    for note in &report.notes {
        writeln!(out, "note     {note}")?;
    }
    for Finding { what, remedy } in &report.findings {
        writeln!(out, "PROBLEM  {what}\n         remedy: {remedy}")?;
    }
    match report.findings.len() {
        0 => writeln!(out, "nothing found that would break a promise")?,
        count => writeln!(out, "{count} found")?,
    }
    out.flush()
}
