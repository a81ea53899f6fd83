//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::{Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use idem_core::store::admin::KeyFilter;
use idem_core::store::trail;
use idem_core::{KeyDigest, RecordState};

use crate::print;

/// The shortest time between two looks of `watch`.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
/// As long as an operation's own `ttl` may be.
const LONGEST_TTL: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Lists, shows and settles the calls that idem guards.
///
/// Exit codes: 0 done; 1 `doctor` found something; 2 wrong arguments; 3 no such record; 4 refused
/// (alive, not abandoned, changed, not confirmed); 5 the store is unavailable, or refuses.
#[derive(Debug, Parser)]
#[command(name = "idem", version)]
pub(crate) struct Args {
    /// The store: `redis://`, `rediss://`, `redis+sentinel://`, `redis+cluster://`, `postgres://`,
    /// `mysql://` or `sqlite://`
    #[arg(
        long,
        env = "IDEM_STORE",
        hide_env_values = true,
        global = true,
        value_name = "URL"
    )]
    pub(crate) store: Option<String>,
    /// The prefix of the keys in Redis, if it is not `idem`
    #[arg(long, global = true, value_name = "PREFIX", value_parser = prefix)]
    pub(crate) prefix: Option<String>,
    /// The table in SQL, if it is not `idem_records`
    #[arg(long, global = true, value_name = "TABLE", value_parser = table)]
    pub(crate) table: Option<String>,
    /// Prints JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists records, oldest first
    List(List),
    /// Shows one record with its outcome, ages, attempt and fingerprint, the steps of its current
    /// run, and what operators decided about it
    ///
    /// A committed record has no current run, so no steps are listed. If the record does not exist
    /// because its transaction was rolled back, the steps that ran beside that are listed, and the
    /// exit code is 3.
    Show(Show),
    /// Commits an abandoned or released record with an outcome in JSON
    Settle(Settle),
    /// Removes a record: the next call runs the body as the first attempt, and all its steps
    ///
    /// The run of the key ends with its record. The records of its steps stay until they expire,
    /// and no call sees them. With `--keep-steps` the key is released instead.
    Forget(Forget),
    /// Releases an abandoned key: the next call runs the body as the next attempt
    Release(Change),
    /// Counts the records of each operation by state
    Stats,
    /// Counts the records of each operation again and again, until it is interrupted
    Watch(Watch),
    /// Removes many records, of an operation or by their keys, in batches
    ///
    /// The runs of their keys end. The steps of calls that had not ended are removed after them.
    /// With keys and without `--operation`, `--state` and `--older-than`, so are all steps that are
    /// left of ended calls; else those stay until they expire, and no call sees them.
    Purge(Purge),
    /// Lists what operators decided, also about records that are gone
    Audit(Audit),
    /// Finds settings of this store that would break a promise, and says how to fix them
    Doctor,
    /// Prints the statements that create the table, for a migration file. `--table` names it
    Schema {
        /// Which database
        database: Database,
    },
    /// Prints the completions for a shell
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Prints the manual page
    Man,
}

#[derive(Debug, clap::Args)]
pub(crate) struct List {
    /// Of this operation
    #[arg(long)]
    pub(crate) operation: Option<String>,
    /// In this state
    #[arg(long)]
    pub(crate) state: Option<State>,
    /// In flight or abandoned, and claimed or renewed at least this long ago, such as `10m`. Stores
    /// do not record the age of other records
    #[arg(long, value_parser = humantime::parse_duration, value_name = "AGE")]
    pub(crate) older_than: Option<Duration>,
    /// With the digest that logs show
    #[arg(long, value_parser = digest)]
    pub(crate) digest: Option<KeyDigest>,
    #[command(flatten)]
    pub(crate) keys: Keys,
    /// How many records at most
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Continues an earlier listing at its cursor
    #[arg(long)]
    pub(crate) cursor: Option<String>,
}

/// Which keys a command is about.
#[derive(Debug, clap::Args)]
pub(crate) struct Keys {
    /// With this key; or, if it ends with `*`, with keys whose first part begins with the text
    /// before it, such as `user-7*` (which has `user-70` too). Other characters stand for
    /// themselves: `user 7`, not `user%207`
    #[arg(long, value_name = "KEY", value_parser = not_empty, allow_hyphen_values = true)]
    pub(crate) key: Option<String>,
    /// With keys whose first part is exactly this text: those of one tenant
    #[arg(
        long,
        value_name = "TEXT",
        value_parser = not_empty,
        allow_hyphen_values = true,
        conflicts_with = "key"
    )]
    pub(crate) first_part: Option<String>,
}

impl Keys {
    pub(crate) fn filter(&self) -> Option<KeyFilter> {
        let first_part = self.first_part.as_deref().map(KeyFilter::first_part);
        first_part.or_else(|| self.key.as_deref().map(KeyFilter::from))
    }
}

#[derive(Debug, clap::Args)]
#[command(
    override_usage = "idem show [OPTIONS] <OPERATION> <KEY>\n       idem show [OPTIONS] --digest <DIGEST>"
)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Shows another outcome of the operation too, which a function recorded: as a pattern for
    /// `settle`. It is the data of another call
    #[arg(long)]
    pub(crate) pattern: bool,
}

/// One record: by operation and key, or by its digest.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// The operation
    #[arg(required_unless_present = "digest", requires = "key")]
    pub(crate) operation: Option<String>,
    /// The key as `list` shows it. Several parts are joined by `:`
    #[arg(required_unless_present = "digest", value_parser = typed(), allow_hyphen_values = true)]
    pub(crate) key: Option<String>,
    /// Instead of both: the digest that logs show
    #[arg(long, value_parser = digest, conflicts_with_all = ["operation", "key"])]
    pub(crate) digest: Option<KeyDigest>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Change {
    /// The operation
    pub(crate) operation: String,
    /// The key as `list` shows it. Several parts are joined by `:`
    #[arg(value_parser = typed(), allow_hyphen_values = true)]
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Forget {
    #[command(flatten)]
    pub(crate) change: Change,
    /// Releases the key instead, as `release` does: the next attempt goes on after the steps.
    /// Refused if the record is not abandoned
    #[arg(long)]
    pub(crate) keep_steps: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Settle {
    #[command(flatten)]
    pub(crate) change: Change,
    /// A file with the outcome, in JSON; `-` is the standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) value: PathBuf,
    /// The outcome is an error of the function, which duplicates get
    #[arg(long)]
    pub(crate) error: bool,
    /// The version of the outcome's type: the `outcome_version` of the operation
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "error"
    )]
    pub(crate) outcome_version: u32,
    /// How long the outcome is kept. Default: as long as the record would have been, from now
    #[arg(long, value_parser = ttl, value_name = "LENGTH")]
    pub(crate) ttl: Option<Duration>,
    /// Replaces an outcome that was settled by hand. It is kept as long as that would have been
    #[arg(long, conflicts_with = "ttl")]
    pub(crate) replace: bool,
    /// Settles even if the outcome has another shape than the operation's other outcomes: callers
    /// that cannot read it get an error
    #[arg(long)]
    pub(crate) other_shape: bool,
}

/// The confirmation of a change, and its reason for the audit trail.
#[derive(Debug, clap::Args)]
pub(crate) struct Consent {
    /// Skips the question
    #[arg(long)]
    pub(crate) yes: bool,
    /// Why, for the audit trail: up to 512 bytes
    #[arg(long, value_name = "TEXT", value_parser = reason, allow_hyphen_values = true)]
    pub(crate) reason: Option<String>,
    /// Changes the record even if it is in flight and its lease is alive: its body continues until
    /// its owner notices
    #[arg(long)]
    pub(crate) force: bool,
    /// How long the audit trail in the store keeps the decision: up to 400 days
    #[arg(long, value_parser = audit_ttl, default_value = "90d", value_name = "LENGTH", env = "IDEM_AUDIT_TTL")]
    pub(crate) audit_ttl: Duration,
    /// Leaves no entry in the audit trail, for a store that has no room for one. Only the log says
    /// who and why
    #[arg(long)]
    pub(crate) no_audit: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Audit {
    /// About this operation
    #[arg(long)]
    pub(crate) operation: Option<String>,
    /// About the record with the digest that logs show
    #[arg(long, value_parser = digest)]
    pub(crate) digest: Option<KeyDigest>,
    /// How many decisions at most
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// Continues an earlier listing at its cursor
    #[arg(long)]
    pub(crate) cursor: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    /// The time between two looks at the store
    #[arg(long, value_parser = interval, default_value = "2s", value_name = "LENGTH")]
    pub(crate) interval: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Purge {
    /// Of this operation. It can be left out if the keys are given: then of every operation
    #[arg(long, required_unless_present_any = ["key", "first_part"])]
    pub(crate) operation: Option<String>,
    #[command(flatten)]
    pub(crate) keys: Keys,
    /// In this state
    #[arg(long)]
    pub(crate) state: Option<State>,
    /// In flight or abandoned, and claimed or renewed at least this long ago. Stores do not record
    /// the age of other records
    #[arg(long, value_parser = humantime::parse_duration, value_name = "AGE")]
    pub(crate) older_than: Option<Duration>,
    #[command(flatten)]
    pub(crate) consent: Consent,
}

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Database {
    #[value(alias = "postgresql")]
    Postgres,
    /// MySQL and MariaDB
    #[value(alias = "mariadb")]
    Mysql,
    Sqlite,
}

/// The state of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum State {
    Issued,
    InFlight,
    Abandoned,
    Released,
    Committed,
    Done,
}

impl From<State> for RecordState {
    fn from(state: State) -> Self {
        match state {
            State::Issued => Self::Issued,
            State::InFlight => Self::InFlight,
            State::Abandoned => Self::Abandoned,
            State::Released => Self::Released,
            State::Committed => Self::Committed,
            State::Done => Self::Done,
        }
    }
}

fn digest(text: &str) -> Result<KeyDigest, String> {
    KeyDigest::parse(text)
        .ok_or_else(|| "a digest is 16 hexadecimal digits, as logs show it".to_owned())
}

/// A variable of a script may be empty by mistake.
fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty; no key is".to_owned());
    }
    Ok(print::typed(text))
}

/// Reads a key as listings show it.
fn typed() -> impl TypedValueParser<Value = String> {
    StringValueParser::new().map(|text| print::typed(&text))
}

fn ttl(text: &str) -> Result<Duration, String> {
    let length = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_millis(1)..=LONGEST_TTL).contains(&length) {
        return Ok(length);
    }
    Err("an outcome is kept for at least 1 ms, and for up to 100 years".to_owned())
}

/// As the stores check it.
fn prefix(text: &str) -> Result<String, String> {
    if text.is_empty()
        || text.contains(|c: char| matches!(c, '{' | '}') || c.is_whitespace() || c.is_control())
    {
        return Err(
            "a prefix is not empty, and has no braces, white space or control characters"
                .to_owned(),
        );
    }
    Ok(text.to_owned())
}

/// As the stores check it.
fn table(text: &str) -> Result<String, String> {
    let is_identifier = |part: &str| {
        part.len() <= 63
            && part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && part
                .chars()
                .all(|other| other.is_ascii_alphanumeric() || other == '_')
    };
    if text.split('.').count() <= 2 && text.split('.').all(is_identifier) {
        return Ok(text.to_owned());
    }
    Err(
        "write `name` or `schema.name` with letters, digits and `_`, each at most 63 bytes"
            .to_owned(),
    )
}

fn audit_ttl(text: &str) -> Result<Duration, String> {
    let length = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_millis(1)..=trail::LONGEST).contains(&length) {
        return Ok(length);
    }
    Err("a decision is kept for up to 400 days".to_owned())
}

/// With no pause, the store would be read all the time.
fn interval(text: &str) -> Result<Duration, String> {
    let length = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if length >= SHORTEST_INTERVAL {
        return Ok(length);
    }
    Err("at least 10 ms are between two looks; `2s` is the default".to_owned())
}

/// A record has room for 512 bytes.
fn reason(text: &str) -> Result<String, String> {
    if text.len() > 512 {
        return Err(format!(
            "a reason has up to 512 bytes, and this one has {}",
            text.len()
        ));
    }
    Ok(text.to_owned())
}
