//! The tests of the workspace: those of `cargo xtask test`, those of CI, and those of the night.

use anyhow::{Result, ensure};
use xshell::Shell;

use crate::runner::{self, SERVER, Tests};
use crate::steps::Steps;
use crate::tool::Package;
use crate::workspace::{self, TestProgram, Workspace};
use crate::{browser, clients, floors, redis, servers, tool, without};

const OPENSSL: Package = Package {
    program: "openssl",
    apt: "openssl",
    brew: "openssl",
    elsewhere: None,
};
const MARIADB: Package = Package {
    program: "mariadb-install-db",
    apt: "mariadb-server",
    brew: "mariadb",
    elsewhere: None,
};
const POSTGRES: Package = Package {
    program: "postgres",
    apt: "postgresql",
    brew: "postgresql",
    // Debian keeps its programs out of `PATH`.
    elsewhere: Some("/usr/lib/postgresql"),
};
const PGBOUNCER: Package = Package {
    program: "pgbouncer",
    apt: "pgbouncer",
    brew: "pgbouncer",
    elsewhere: Some("/usr/sbin/pgbouncer"),
};
const NATS: Package = Package {
    program: "nats-server",
    apt: "nats-server",
    brew: "nats-server",
    elsewhere: Some("/usr/sbin/nats-server"),
};
const RABBITMQ: Package = Package {
    program: "rabbitmq-server",
    apt: "rabbitmq-server",
    brew: "rabbitmq",
    elsewhere: Some("/usr/lib/rabbitmq/bin/rabbitmq-server"),
};

/// The package of the facade's tests, which is not published.
const TESTS: &str = "idem-tests";

/// The programs that only CI runs: clusters and Sentinels that fail over, stores with a flaw each,
/// and brokers.
const PROGRAMS_OF_CI: [&str; 3] = ["topologies", "mutants", "queues"];
/// The modules of tests that only CI runs.
const MODULES_OF_CI: &str = "in_ci::";
/// The tests that need a real MySQL have this in their names.
const ON_MYSQL: &str = "real_mysql";
/// The tests that need a real broker of Kafka have this in their names.
const ON_KAFKA: &str = "real_kafka";
/// The storms of messages over brokers have this in their names.
const STORMS: &str = "whatever_dies";
/// The features that only CI builds: the older version of sqlx, and librdkafka.
const FEATURES_OF_CI: [&str; 2] = ["sqlx-08", "kafka"];
/// The package over librdkafka, which takes a minute to build. The pure part is in `idem-queue`.
const KAFKA: &str = "idem-kafka";

/// The last lines of `cargo xtask test`.
const LEFT_TO_CI: &str = "Left to `cargo xtask ci`: MySQL itself, Valkey, PgBouncer, sqlx 0.8, a \
                          second isolation level, most failovers, RabbitMQ, NATS and Kafka, a browser, \
                          the compiler's messages,\nmodel checks, flawed stores and statements, a \
                          fault run, schedules, fuzzing, examples, benchmarks, lints and API docs.";

/// The last lines of CI's tests.
const LEFT_TO_NIGHT: &str = "Left to `cargo xtask night`: the largest worlds of the model, storms \
                             of 10,000 messages, clients in Python and Node, the stores on \
                             PostgreSQL 18, Redis 8 and Valkey 9, JetStream on the newest NATS, \
                             outcomes read back in a release build, builds with the oldest \
                             dependencies, and the core without each layer.";

/// `cargo xtask test`: every promise over every store, and every guide.
pub(crate) fn run(workspace: &Workspace, args: &[String]) -> Result<()> {
    let names = args.iter().filter(|arg| !arg.starts_with('-'));
    ensure!(
        names.count() < 2,
        "give one name: the programs of conformance trials take no other"
    );
    redis::ensure_with(workspace.shell(), &[OPENSSL, MARIADB, POSTGRES])?;
    let packages = packages_of_test(workspace)?;
    let selection = selection(&packages);
    let mut steps = Steps::of("test");
    let mut programs = Vec::new();
    let is_built = steps.run("build", "the test programs", || {
        programs = workspace.test_programs(&[selection.clone(), targets(&packages)].concat())?;
        Ok(())
    });
    if !is_built {
        return steps.finish();
    }
    let tests = Tests {
        args: args.to_vec(),
        skip: vec![MODULES_OF_CI, ON_MYSQL],
        ..Tests::default()
    };
    let about = "over memory, Redis, PostgreSQL, MariaDB and SQLite";
    steps.run("tests", about, || {
        runner::run(workspace, programs.iter(), &tests)
    });
    if args.is_empty() {
        // Also after a failure: one run shows everything.
        steps.run("guides", "README, guides and API docs", || {
            let cargo = workspace.cargo().args(["test", "--doc", "--quiet"]);
            Ok(cargo.args(&selection).run()?)
        });
        println!("\n{LEFT_TO_CI}");
    } else {
        println!("The guides are left out, because arguments were given.");
    }
    steps.finish()
}

/// The test programs of `cargo xtask test` compile without the features that CI adds to them.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let packages = packages_of_test(workspace)?;
    // With the profile of tests, so that the unit tests are among them.
    let cargo = workspace.cargo().args(["check", "--profile", "test"]);
    let cargo = cargo.args(selection(&packages));
    Ok(cargo.args(targets(&packages)).run()?)
}

/// The published packages, and the tests of the facade.
fn packages_of_test(workspace: &Workspace) -> Result<Vec<workspace::Package>> {
    let members = workspace.members()?.into_iter();
    Ok(members
        .filter(|member| member.is_published() || member.name == TESTS)
        .filter(|member| member.name != KAFKA)
        .collect())
}

/// The packages and their features, as arguments of cargo. The guides are built with the same ones,
/// or cargo would build the dependencies once more.
fn selection(packages: &[workspace::Package]) -> Vec<String> {
    let mut args = Vec::new();
    for package in packages {
        args.extend(["--package".to_owned(), package.name.clone()]);
        for feature in package.features() {
            if !FEATURES_OF_CI.iter().any(|of| feature.starts_with(of)) {
                args.push(format!("--features={}/{feature}", package.name));
            }
        }
    }
    args
}

/// The targets that `cargo xtask test` builds, as arguments of cargo.
fn targets(packages: &[workspace::Package]) -> Vec<String> {
    let tests = packages.iter().flat_map(workspace::Package::tests);
    let tests = tests.filter(|test| !PROGRAMS_OF_CI.contains(test));
    ["--lib", "--bins"]
        .into_iter()
        .chain(tests.flat_map(|test| ["--test", test]))
        .map(str::to_owned)
        .collect()
}

/// CI's tests: those of `cargo xtask test` and those that it leaves out, as one build. With `full`,
/// also the examples that need a broker or an operator, and examples as a newcomer builds them.
pub(crate) fn in_ci(workspace: &Workspace, full: bool) -> Result<()> {
    let tests = ensure_for_ci(workspace)?;
    let mut steps = Steps::of("test");
    let mut programs = Vec::new();
    let about = "the test programs and the examples, with all features";
    let is_built = steps.run("build", about, || {
        programs = programs_of_ci(workspace)?;
        Ok(())
    });
    if !is_built {
        return steps.finish();
    }
    // Also after a failure: one run shows everything.
    steps.run("tests", "all but those of Kafka", || {
        let others = programs.iter().filter(|program| program.package != KAFKA);
        runner::run(workspace, others, &tests)
    });
    steps.run("kafka", "over the cluster in memory of librdkafka", || {
        let kafka = programs.iter().filter(|program| program.package == KAFKA);
        let tests = Tests {
            logs: "kafka",
            ..Tests::default()
        };
        runner::run(workspace, kafka, &tests)
    });
    steps.run("doctests", "README, guides and API docs", || {
        let cargo = workspace.cargo().args(["test", "--doc", "--quiet"]);
        Ok(cargo.args(["--workspace", "--all-features"]).run()?)
    });
    steps.run("valkey", "the Redis store on a real Valkey", || {
        on_redis(workspace, &programs, "valkey", &servers::VALKEY)
    });
    if full {
        let about = "those that need a broker or an operator";
        steps.run("examples", about, || examples(workspace, &programs));
    }
    println!("\n{LEFT_TO_NIGHT}");
    steps.finish()
}

/// Everything that the workspace has, built together. Without a browser, not its tests.
fn programs_of_ci(workspace: &Workspace) -> Result<Vec<TestProgram>> {
    let has_browser = browser::is_there(workspace.shell());
    let mut programs =
        workspace.test_programs(&["--workspace".to_owned(), "--all-features".to_owned()])?;
    if !has_browser {
        programs.retain(|program| program.package != browser::PACKAGE);
    }
    Ok(programs)
}

/// `cargo xtask night`: what takes too long for each change.
pub(crate) fn night(workspace: &Workspace) -> Result<()> {
    let mut storms = ensure_for_ci(workspace)?;
    let programs = programs_of_ci(workspace)?;
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
    steps.run(
        "storms",
        "10,000 messages over RabbitMQ, NATS and Kafka",
        || {
            let queues = programs
                .iter()
                .filter(|program| program.id == "idem-tests::queues");
            storms.args.push(STORMS.to_owned());
            storms.env.push(("IDEM_QUEUE_MESSAGES", "10000".into()));
            runner::run(workspace, queues, &storms)
        },
    );
    steps.run(
        "clients",
        "the HTTP layer with clients in Python and Node",
        || clients::test(workspace),
    );
    steps.run("postgres-18", "the PostgreSQL store on it", || {
        on_postgres(workspace, &programs, &servers::POSTGRES_18)
    });
    steps.run("nats", "JetStream on the newest nats-server", || {
        let Some(path) = servers::newest_nats(workspace) else {
            return Ok(());
        };
        let queues = programs
            .iter()
            .filter(|program| program.id == "idem-tests::queues");
        let tests = Tests {
            args: vec!["jetstream".to_owned()],
            env: vec![("PATH", path)],
            logs: "nats",
            ..Tests::default()
        };
        runner::run(workspace, queues, &tests)
    });
    for (name, server) in [
        ("redis-8", &servers::REDIS_8),
        ("valkey-9", &servers::VALKEY_9),
    ] {
        steps.run(name, "the Redis store on it", || {
            on_redis(workspace, &programs, name, server)
        });
    }
    steps.run("release", "outcomes are read back in tests", || {
        let cargo = workspace.cargo().args(["test", "--release"]);
        let kit = cargo.args(["--package", "idem-testkit", "--test", "kit"]);
        Ok(kit.arg("outcomes").run()?)
    });
    steps.run(
        "floors",
        "the packages build with the oldest dependencies that they allow",
        || floors::check(workspace),
    );
    steps.run(
        "layers",
        "the core builds without each layer, and passes its tests",
        || without::check(workspace, &[]),
    );
    steps.finish()
}

/// Makes sure of all servers, and installs or makes those that are missing. Returns the tests that
/// can run then; the output names the others.
fn ensure_for_ci(workspace: &Workspace) -> Result<Tests> {
    let packages = [OPENSSL, MARIADB, POSTGRES, PGBOUNCER, NATS, RABBITMQ];
    redis::ensure_with(workspace.shell(), &packages)?;
    let mut tests = Tests::default();
    match servers::MYSQL.find(workspace) {
        Some(program) => tests.env.push((servers::MYSQL.given, program.into())),
        None => tests.skip.push(ON_MYSQL),
    }
    match servers::tansu(workspace) {
        Some(program) => tests.env.push((servers::TANSU, program)),
        None => tests.skip.push(ON_KAFKA),
    }
    Ok(tests)
}

/// Makes sure that there are a NATS and a RabbitMQ, and installs what is missing.
pub(crate) fn ensure_brokers(shell: &Shell) -> Result<()> {
    tool::ensure(shell, &[NATS, RABBITMQ])
}

/// Makes sure that there are a MariaDB and a PostgreSQL, and installs what is missing.
pub(crate) fn ensure_databases(shell: &Shell) -> Result<()> {
    tool::ensure(shell, &[MARIADB, POSTGRES])
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

fn examples(workspace: &Workspace, programs: &[TestProgram]) -> Result<()> {
    let programs = programs
        .iter()
        .filter(|program| program.id == "idem-examples::programs");
    let tests = Tests {
        args: vec!["--ignored".to_owned()],
        logs: "full",
        ..Tests::default()
    };
    runner::run(workspace, programs, &tests)?;
    // As the README has it: no features, no server.
    for name in ["quickstart", "payments"] {
        workspace.cargo().args(["run", "--example", name]).run()?;
    }
    Ok(())
}

/// The tests of the Redis store on another server than the installed one.
fn on_redis(
    workspace: &Workspace,
    programs: &[TestProgram],
    logs: &'static str,
    server: &servers::Server,
) -> Result<()> {
    let Some(program) = server.find(workspace) else {
        return Ok(());
    };
    let programs = programs
        .iter()
        .filter(|program| program.package == "idem-redis");
    let tests = Tests {
        logs,
        env: vec![(SERVER, program.into())],
        ..Tests::default()
    };
    runner::run(workspace, programs, &tests)
}

/// The tests over PostgreSQL on another server than the installed one.
fn on_postgres(
    workspace: &Workspace,
    programs: &[TestProgram],
    server: &servers::Server,
) -> Result<()> {
    let Some(program) = server.find(workspace) else {
        return Ok(());
    };
    let programs = programs
        .iter()
        .filter(|program| [TESTS, "idem-sqlx"].contains(&&*program.package));
    let tests = Tests {
        args: vec!["postgres".to_owned()],
        env: vec![(server.given, program.into())],
        ..Tests::default()
    };
    runner::run(workspace, programs, &tests)
}
