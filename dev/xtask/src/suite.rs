//! The tests of the workspace.

use anyhow::Result;
use xshell::Shell;

use crate::steps::Steps;
use crate::workspace::Workspace;
use crate::{browser, clients, floors, redis, runner, servers, tool};

const OPENSSL: tool::Package = tool::Package {
    program: "openssl",
    apt: "openssl",
    brew: "openssl",
};

const MARIADB: tool::Package = tool::Package {
    program: "mariadb-install-db",
    apt: "mariadb-server",
    brew: "mariadb",
};
const POSTGRES: tool::Package = tool::Package {
    program: "postgres",
    apt: "postgresql",
    brew: "postgresql",
};

const PGBOUNCER: tool::Package = tool::Package {
    program: "pgbouncer",
    apt: "pgbouncer",
    brew: "pgbouncer",
};
const NATS: tool::Package = tool::Package {
    program: "nats-server",
    apt: "nats-server",
    brew: "nats-server",
};
const RABBITMQ: tool::Package = tool::Package {
    program: "rabbitmq-server",
    apt: "rabbitmq-server",
    brew: "rabbitmq",
};

/// The tests that need a real MySQL have this in their names.
const ON_MYSQL: &str = "real_mysql";

/// The tests that `cargo xtask test` leaves out.
const AT_NIGHT: &str = "Not run, but by `cargo xtask night`: the largest worlds of the model, \
                        storms of 10,000 messages, clients in Python and Node, the stores on \
                        PostgreSQL 18, Redis 8 and Valkey 9, and builds with the oldest \
                        dependencies.";

/// `cargo xtask test`, which is also CI's test step.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<()> {
    ensure_servers(workspace.shell())?;
    let left_out = left_out(workspace);
    let mut steps = Steps::of("test");
    steps.run(
        "tests",
        "unit, integration and UI tests, all features",
        || tests(workspace, &left_out, args),
    );
    if !args.is_empty() {
        println!(
            "The doctests, and the tests on Valkey, are left out, because arguments were given."
        );
        return steps.finish();
    }
    // Also after a failure: one run shows everything.
    if runner::has_nextest(workspace) {
        steps.run(
            "sharing",
            "tests that share a server: conformance, and the promises over every store",
            || runner::sharing(workspace, left_out.packages, left_out.named(), None, None),
        );
    }
    steps.run("doctests", "README, guides and API docs", || {
        workspace
            .cargo()
            .args(["test", "--workspace", "--all-features", "--doc"])
            .run()?;
        Ok(())
    });
    steps.run("valkey", "the Redis store on a real Valkey", || {
        on_redis(workspace, &left_out, &servers::VALKEY)
    });
    println!("\n{AT_NIGHT}");
    steps.finish()
}

/// `cargo xtask night`: what takes too long for each change.
pub(crate) fn night(workspace: &Workspace) -> Result<()> {
    ensure_servers(workspace.shell())?;
    let left_out = left_out(workspace);
    let mut steps = Steps::of("night");
    steps.run("model", "the largest worlds", || {
        // With optimisations: they have tens of millions of states.
        let cargo = workspace.cargo().args([
            "test",
            "--release",
            "--package",
            "idem-model",
            "--test",
            "promises",
        ]);
        Ok(cargo.args(["--", "--ignored", "--test-threads=1"]).run()?)
    });
    steps.run("storms", "10,000 messages over each broker", || {
        Ok(runner::of(workspace, "idem-tests", STORMS)
            .env("IDEM_QUEUE_MESSAGES", "10000")
            .run()?)
    });
    steps.run(
        "clients",
        "the HTTP layer with clients in Python and Node",
        || clients::test(workspace),
    );
    steps.run("postgres-18", "the PostgreSQL store on it", || {
        on_postgres(workspace, &servers::POSTGRES_18)
    });
    for (name, server) in [
        ("redis-8", &servers::REDIS_8),
        ("valkey-9", &servers::VALKEY_9),
    ] {
        steps.run(name, "the Redis store on it", || {
            on_redis(workspace, &left_out, server)
        });
    }
    steps.run(
        "floors",
        "the packages build with the oldest dependencies that they allow",
        || floors::check(workspace),
    );
    steps.finish()
}

/// The tests of consumers that many messages make longer.
const STORMS: &str = "binary_id(idem-tests::queues) and test(whatever_dies)";

/// Makes sure of all servers that are installed, as far as they are not there.
fn ensure_servers(shell: &Shell) -> Result<()> {
    redis::ensure(shell)?;
    tool::ensure(
        shell,
        OPENSSL,
        "the test of TLS connections makes its certificates with it",
    )?;
    ensure_databases(shell)?;
    let why = "the PostgreSQL store is tested behind it";
    tool::ensure_at(shell, PGBOUNCER, why, "/usr/sbin/pgbouncer")?;
    ensure_brokers(shell)
}

/// Makes sure that there are a NATS and a RabbitMQ, and installs what is missing.
pub(crate) fn ensure_brokers(shell: &Shell) -> Result<()> {
    let why = "the consumers are tested against real brokers";
    tool::ensure_at(shell, NATS, why, "/usr/sbin/nats-server")?;
    tool::ensure_at(
        shell,
        RABBITMQ,
        why,
        "/usr/lib/rabbitmq/bin/rabbitmq-server",
    )
}

/// The tests that this machine cannot run. The output names them.
struct LeftOut {
    /// As arguments of cargo.
    packages: &'static [&'static str],
    real_mysql: bool,
}

impl LeftOut {
    /// Parts of the names of tests that cannot run here.
    fn named(&self) -> Option<&'static str> {
        self.real_mysql.then_some(ON_MYSQL)
    }
}

fn left_out(workspace: &Workspace) -> LeftOut {
    let packages: &[&str] = if browser::is_there(workspace.shell()) {
        &[]
    } else {
        &["--exclude", browser::PACKAGE]
    };
    let mysql = servers::MYSQL.find(workspace);
    if let Some(program) = &mysql {
        workspace.shell().set_var(servers::MYSQL.given, program);
    }
    LeftOut {
        packages,
        real_mysql: mysql.is_none(),
    }
}

/// Makes sure that there are a MariaDB and a PostgreSQL, and installs what is missing.
pub(crate) fn ensure_databases(shell: &Shell) -> Result<()> {
    tool::ensure(
        shell,
        MARIADB,
        "the MySQL store is tested against a real server",
    )?;
    // Debian keeps its programs out of `PATH`.
    let debian = "/usr/lib/postgresql";
    tool::ensure_at(
        shell,
        POSTGRES,
        "the PostgreSQL store is tested against a real server",
        debian,
    )
}

/// `idem-core/src/explored.rs`. Its locks are those of the explorer, so it is built apart from
/// everything else.
pub(crate) fn explore(workspace: &Workspace) -> Result<()> {
    let cargo = workspace.cargo().args([
        "test",
        "-p",
        "idem-core",
        "--lib",
        "--target-dir",
        "target/explore",
        "explored",
    ]);
    cargo.env("RUSTFLAGS", "--cfg shuttle").run()?;
    Ok(())
}

fn tests(workspace: &Workspace, left_out: &LeftOut, args: &[String]) -> Result<()> {
    let mut cargo = runner::all(workspace).args(left_out.packages).args(args);
    if runner::has_nextest(workspace) {
        let mut wanted = vec!["all()".to_owned()];
        if args.is_empty() {
            wanted.push(runner::without_sharing());
        }
        wanted.extend(left_out.named().map(|name| format!("not test({name})")));
        cargo = cargo.args(["--filterset", &wanted.join(" and ")]);
    } else if let Some(name) = left_out.named() {
        cargo = cargo.args(["--", "--skip", name]);
    }
    cargo.run()?;
    Ok(())
}

/// The tests of the Redis store on another server than the installed one.
fn on_redis(workspace: &Workspace, left_out: &LeftOut, server: &servers::Server) -> Result<()> {
    let Some(program) = server.find(workspace) else {
        return Ok(());
    };
    if !runner::has_nextest(workspace) {
        runner::of(workspace, "idem-redis", "")
            .env(runner::SERVER, &program)
            .run()?;
        return Ok(());
    }
    let tests = format!("package(idem-redis) and {}", runner::without_sharing());
    runner::of(workspace, "idem-redis", &tests)
        .env(runner::SERVER, &program)
        .run()?;
    runner::sharing(
        workspace,
        left_out.packages,
        None,
        Some("idem-redis"),
        Some(&program),
    )
}

/// The tests over PostgreSQL on another server than the installed one.
fn on_postgres(workspace: &Workspace, server: &servers::Server) -> Result<()> {
    let Some(program) = server.find(workspace) else {
        return Ok(());
    };
    let tests = "(package(idem-sqlx) or package(idem-tests)) and test(/postgres/)";
    runner::of(workspace, "idem-sqlx", tests)
        .env(server.given, &program)
        .run()?;
    Ok(())
}
