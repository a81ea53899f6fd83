//! Issues: keys for one use, many in few round trips, by one `SET .. NX GET PX` each.

use std::time::Duration;

use idem_core::StoreError;
use idem_core::record::{Issue, Issued, Record};
use idem_core::wire::{self, Parsed};
use redis::{Cmd, Value};

use crate::connection::command::{MAX_MILLIS, millis};
use crate::connection::error::unexpected;
use crate::connection::pipeline::{self, KeyedCommand};
use crate::connection::step_runner::StepRunner;
use crate::store::keys::Keys;
use crate::store::unreadable::unreadable;

pub(crate) async fn issue(
    runner: &StepRunner,
    keys: &Keys,
    issues: &[Issue],
) -> Vec<Result<Issued, StoreError>> {
    let issues: Vec<Issue> = issues.iter().map(as_sent).collect();
    let step = |issue: &Issue| {
        let key = keys.record(&issue.id);
        let record = wire::encode(&issue.record());
        let mut set = Cmd::with_capacity(7, 32 + key.len() + record.len());
        set.arg("SET")
            .arg(&key)
            .arg(record)
            .arg("NX")
            .arg("GET")
            .arg("PX")
            .arg(millis(issue.expires_in()));
        KeyedCommand {
            key,
            weight: 1,
            command: set,
        }
    };
    let steps: Vec<KeyedCommand> = issues.iter().map(step).collect();
    pipeline::carry_out(runner, &steps, None, |index, server, answer| {
        issued(&issues[index], server, answer)
    })
    .await
}

/// Returns the issue with its grace in whole milliseconds, as the record holds it, so that a
/// repeated issue is recognized. The expiry, which includes the grace, must stay below the longest
/// time.
fn as_sent(issue: &Issue) -> Issue {
    let whole = u64::try_from(issue.grace.as_millis())
        .unwrap_or(MAX_MILLIS)
        .min(MAX_MILLIS / 2);
    issue.clone().with_grace(Duration::from_millis(whole))
}

fn issued(issue: &Issue, server: &str, answer: Value) -> Result<Issued, StoreError> {
    match answer {
        Value::Nil => Ok(Issued::Issued),
        Value::BulkString(found) => match wire::decode(&found.into()).map_err(unreadable)? {
            Parsed::Record(found @ Record::Issued { .. }) => Ok(found.on_issue(issue)),
            _ => Ok(Issued::Taken),
        },
        other => Err(unexpected(server, &other)),
    }
}
