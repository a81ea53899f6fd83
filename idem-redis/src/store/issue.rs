//! Issues: keys that are given out for one use, many in few round trips. One `SET .. NX GET PX`
//! each.

use std::time::Duration;

use idem_core::StoreError;
use idem_core::record::{Issue, Issued, Record};
use idem_core::wire::{self, Parsed};
use redis::{Cmd, Value};

use crate::client::command::{FOREVER, millis};
use crate::client::error::unexpected;
use crate::client::many::{self, KeyedCommand};
use crate::client::server::Server;
use crate::store::keys::Keys;
use crate::store::unreadable::unreadable;

pub(crate) async fn issue(server: &Server, keys: &Keys, issues: &[Issue]) -> Vec<Result<Issued, StoreError>> {
    let issues: Vec<Issue> = issues.iter().map(as_sent).collect();
    let step = |issue: &Issue| {
        let (key, record) = (keys.record(&issue.id), wire::encode(&issue.record()));
        let mut set = Cmd::with_capacity(7, 32 + key.len() + record.len());
        set.arg("SET").arg(&key).arg(record).arg("NX").arg("GET").arg("PX").arg(millis(issue.expires_in()));
        KeyedCommand { key, weight: 1, command: set }
    };
    let steps: Vec<KeyedCommand> = issues.iter().map(step).collect();
    many::carry_out(server, &steps, None, |index, server, answer| issued(&issues[index], server, answer)).await
}

/// The issue with a grace as the record can hold it, so that it is known again; and not so long
/// that its expiry has no room for more.
fn as_sent(issue: &Issue) -> Issue {
    let whole = u64::try_from(issue.grace.as_millis()).unwrap_or(FOREVER).min(FOREVER / 2);
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
