//! The tests of the workspace.

use anyhow::Result;
use xshell::Shell;

use crate::steps::Steps;
use crate::workspace::Workspace;
use crate::{browser, clients, redis, runner, tool, valkey};

const OPENSSL: tool::Package = tool::Package { program: "openssl", apt: "openssl", brew: "openssl" };

const MARIADB: tool::Package = tool::Package { program: "mariadb-install-db", apt: "mariadb-server", brew: "mariadb" };
const POSTGRES: tool::Package = tool::Package { program: "postgres", apt: "postgresql", brew: "postgresql" };

const NATS: tool::Package = tool::Package { program: "nats-server", apt: "nats-server", brew: "nats-server" };
const RABBITMQ: tool::Package = tool::Package { program: "rabbitmq-server", apt: "rabbitmq-server", brew: "rabbitmq" };

/// How much of the tests is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    Whole,
    /// Without what takes minutes and seldom changes: clients from other package registries, on
    /// Valkey all that its `SET .. IFEQ` does not concern, and some suites over databases.
    Short,
}

/// `cargo xtask test`, which is also CI's test step.
pub(crate) fn run(workspace: &Workspace, args: &[String], extent: Extent) -> Result<()> {
    redis::ensure(workspace.shell())?;
    tool::ensure(workspace.shell(), OPENSSL, "the test of TLS connections makes its certificates with it")?;
    ensure_databases(workspace.shell())?;
    tool::ensure_at(workspace.shell(), NATS, "the consumers are tested against real brokers", "/usr/sbin/nats-server")?;
    let rabbitmq = "/usr/lib/rabbitmq/bin/rabbitmq-server";
    tool::ensure_at(workspace.shell(), RABBITMQ, "the consumers are tested against real brokers", rabbitmq)?;
    let left_out: &[&str] = if browser::is_there(workspace.shell()) { &[] } else { &["--exclude", browser::PACKAGE] };
    let mut steps = Steps::of("test");
    steps.run("tests", "unit, integration and UI tests, all features", || tests(workspace, left_out, args, extent));
    if args.is_empty() {
        // Also after a failure: one run shows everything.
        if runner::has_nextest(workspace) {
            steps.run("trials", "conformance of the memory and the Redis store", || {
                runner::trials(workspace, left_out, None, None)
            });
        }
        steps.run("doctests", "README, guides and API docs", || {
            workspace.cargo().args(["test", "--workspace", "--all-features", "--doc"]).run()?;
            Ok(())
        });
        let all = extent == Extent::Whole;
        if all {
            steps.run("clients", "the HTTP layer with clients in Python and Node", || clients::test(workspace));
        } else {
            println!("The tests with clients in Python and Node are left to `cargo xtask test` and `ci --full`.");
        }
        steps.run("valkey", "the Redis store on a real Valkey", || valkey::test(workspace, left_out, all));
    } else {
        println!(
            "The doctests, and the tests with real clients and on Valkey, are left out, because arguments were given."
        );
    }
    steps.finish()
}

/// Makes sure that there are a MariaDB and a PostgreSQL, and installs what is missing.
pub(crate) fn ensure_databases(shell: &Shell) -> Result<()> {
    tool::ensure(shell, MARIADB, "the MySQL store is tested against a real server")?;
    // Debian keeps its programs out of `PATH`.
    let debian = "/usr/lib/postgresql";
    tool::ensure_at(shell, POSTGRES, "the PostgreSQL store is tested against a real server", debian)
}

/// `idem-core/src/explored.rs`. Its locks are those of the explorer, so it is built apart from
/// everything else.
pub(crate) fn explore(workspace: &Workspace) -> Result<()> {
    let cargo =
        workspace.cargo().args(["test", "-p", "idem-core", "--lib", "--target-dir", "target/explore", "explored"]);
    cargo.env("RUSTFLAGS", "--cfg shuttle").run()?;
    Ok(())
}

/// Whole suites, over databases and drivers that others of them resemble, and the largest worlds of
/// the model, which changes with its own package alone.
const SELDOM: &str = "not (package(idem-sqlx) and (binary(conformance) and test(/serializable|on_sqlx_0_8/) or test(/::thorough::/))) \
     and not (package(idem-sqlx) and test(/wrong_statement.*(postgres|mysql)/)) \
     and not (package(idem-tests) and binary(deaths) and test(/::(postgres|mariadb)::/) and not test(/^killed::postgres::/)) \
     and not (package(idem-tests) and test(/changed_types_in_a_table_of_mariadb/)) \
     and not (package(idem-model) and test(/with_fingerprints|rejected_for_a_time|late_renewals/)) \
     and not (package(idem-testkit) and binary(mutants) and test(/issued_keys|other_flaw/)) \
     and not (package(idem-redis) and test(/conformance::the_suite_passes_(in_a_cluster_by|where_replicas)/))";

/// How many messages the storms over real brokers have in a whole run.
const STORM: &str = "10000";

fn tests(workspace: &Workspace, left_out: &[&str], args: &[String], extent: Extent) -> Result<()> {
    let mut cargo = runner::all(workspace).args(left_out).args(args);
    let is_whole_run = args.is_empty() && runner::has_nextest(workspace);
    let trials = if is_whole_run { runner::without_trials() } else { "all()".to_owned() };
    if extent == Extent::Short && runner::has_nextest(workspace) {
        println!(
            "Left to `cargo xtask test` and `ci --full`: conformance over sqlx 0.8 and over serializable transactions, \
             wrong statements of PostgreSQL and MySQL, most deaths over databases, processes killed at each message of a transaction, conformance of two more Redis set-ups, half of the flaws that the suite must find, and the largest worlds of the model."
        );
        cargo = cargo.args(["--filterset", &format!("{trials} and {SELDOM}")]);
    } else if is_whole_run {
        cargo = cargo.args(["--filterset", &trials]);
    }
    if extent == Extent::Whole && args.is_empty() {
        cargo = cargo.env("IDEM_QUEUE_MESSAGES", STORM);
    }
    cargo.run()?;
    Ok(())
}
