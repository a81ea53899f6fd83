//! Runs test programs: each in one process, several at a time.
//!
//! Its tests share a server of each kind, and most of them wait. cargo-nextest would start a
//! process for each test, and with it a server for most of them.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::steps::pretty;
use crate::workspace::{TestProgram, Workspace};

/// Names the server that the tests start in place of `redis-server`.
pub(crate) const SERVER: &str = "IDEM_REDIS_SERVER";

/// The program of tests that assert a duration or an allocation. They run at the end, one after the
/// other, while nothing else runs.
const QUIET: &str = "::quiet";
/// The modules of such tests in other programs.
const QUIET_MODULES: &str = "quiet::";

/// Tests of one program that run at the same time. Most wait for a server or for a lease.
const THREADS: u32 = 4;

/// A program that prints nothing for so long, the name of no test, hangs and is killed.
const PATIENCE: Duration = Duration::from_secs(4 * 60);

/// The programs that take longest, and so begin first.
const LONGEST: [&str; 6] = [
    "idem-redis::topologies",
    "idem-sqlx::databases",
    "idem-testkit::mutants",
    "idem-tests::deaths",
    "idem-tests::queues",
    "idem-tests::promises",
];

/// A program that does not run as the others do.
struct Special {
    id: &'static str,
    /// `None`: as many as the program itself thinks right.
    threads: Option<u32>,
    /// Nothing else runs beside it.
    alone: bool,
    patience: Duration,
}

const SPECIAL: [Special; 10] = [
    // The conformance suites take turns, a minute each.
    special("idem-sqlx::databases", Some(THREADS), false, 10),
    // Deaths of four stores that take turns, and end at about the same time.
    special("idem-tests::deaths", Some(THREADS), false, 10),
    // Storms of messages, which take longer at night.
    special("idem-tests::queues", Some(THREADS), false, 40),
    // The compiler keeps every core busy.
    special("idem-ui::ui", Some(1), true, 20),
    // Each test explores millions of states on all cores.
    special("idem-model::promises", Some(1), true, 10),
    // A browser is a dozen processes, and beside others they wait too long for each other.
    special("idem-browser::form", Some(1), true, 4),
    // Each test tries all trials on dozens of stores, some of which never answer.
    special("idem-testkit::mutants", Some(THREADS), false, 10),
    // Trials wait even more than tests.
    special("idem-redis::conformance", None, false, 4),
    special("idem-testkit::memory", None, false, 4),
    special("idem-testkit::outside_store", None, false, 4),
];

const fn special(id: &'static str, threads: Option<u32>, alone: bool, minutes: u64) -> Special {
    Special {
        id,
        threads,
        alone,
        patience: Duration::from_secs(minutes * 60),
    }
}

/// The tests of the programs that run.
#[derive(Default)]
pub(crate) struct Tests {
    /// Arguments for each program: a part of the names of the tests that run, and flags.
    pub(crate) args: Vec<String>,
    /// Parts of the names of tests that do not.
    pub(crate) skip: Vec<&'static str>,
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// The folder of the logs, if another step has run the same programs before.
    pub(crate) logs: &'static str,
}

/// The tests of one program that run together.
struct Job<'a> {
    program: &'a TestProgram,
    names: Vec<String>,
    is_quiet: bool,
}

/// Runs the programs, and prints a line for each, and what a failed one has printed.
pub(crate) fn run<'a>(
    workspace: &Workspace,
    programs: impl Iterator<Item = &'a TestProgram>,
    tests: &Tests,
) -> Result<()> {
    let logs = workspace.target_dir()?.join("test-logs").join(tests.logs);
    fs::create_dir_all(&logs)?;
    let mut total = Total::default();
    let (mut beside, mut alone, mut quiet) = (Vec::new(), Vec::new(), Vec::new());
    for program in programs {
        let names = match names(program, tests) {
            Ok(names) => names,
            Err(error) => {
                total.troubles.push(format!("{}: {error:#}", program.id));
                continue;
            }
        };
        let (quietly, others): (Vec<_>, Vec<_>) =
            names.into_iter().partition(|name| is_quiet(program, name));
        let is_alone = special_of(program).is_some_and(|special| special.alone);
        let jobs = if is_alone { &mut alone } else { &mut beside };
        for (jobs, names, is_quiet) in [(jobs, others, false), (&mut quiet, quietly, true)] {
            if !names.is_empty() {
                jobs.push(Job {
                    program,
                    names,
                    is_quiet,
                });
            }
        }
    }
    // Taken from the end.
    beside.sort_by_key(|job| {
        let place = LONGEST.iter().position(|id| *id == job.program.id);
        Reverse(place.unwrap_or(LONGEST.len()))
    });
    let lanes = available_parallelism().map_or(2, |cores| cores.get().max(2));
    for (mut jobs, lanes) in [(beside, lanes), (alone, 1), (quiet, 1)] {
        let mut running: Vec<Running<'_>> = Vec::new();
        loop {
            while running.len() < lanes
                && let Some(job) = jobs.pop()
            {
                running.push(Running::start(job, tests, &logs)?);
            }
            if running.is_empty() {
                break;
            }
            sleep(Duration::from_millis(50));
            let mut unfinished = Vec::new();
            for mut one in running {
                match one.end()? {
                    Some(end) => total.add(one.report(&end, !tests.args.is_empty())?),
                    None => unfinished.push(one),
                }
            }
            running = unfinished;
        }
    }
    total.finish()
}

/// The tests of a program that shall run.
fn names(program: &TestProgram, tests: &Tests) -> Result<Vec<String>> {
    let list = select(&mut command(program, tests), tests)
        .args(["--list", "--format", "terse"])
        .stdin(Stdio::null())
        .output()?;
    ensure!(
        list.status.success(),
        "it cannot list its tests: {}",
        String::from_utf8_lossy(&list.stderr)
    );
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
    let names: Vec<_> = names.map(str::to_owned).collect();
    // A feature may be missing that the whole file depends on.
    ensure!(
        !names.is_empty() || !program.is_integration || !tests.args.is_empty(),
        "it has no tests"
    );
    Ok(names)
}

/// The program, as cargo would start it.
fn command(program: &TestProgram, tests: &Tests) -> Command {
    let mut command = Command::new(&program.path);
    command
        .current_dir(&program.dir)
        .env("CARGO_MANIFEST_DIR", &program.dir)
        .env("CARGO_PKG_NAME", &program.package)
        .envs(tests.env.iter().map(|(name, value)| (name, value)));
    command
}

/// Adds the arguments that select the tests.
fn select<'a>(command: &'a mut Command, tests: &Tests) -> &'a mut Command {
    command.args(&tests.args);
    for skip in &tests.skip {
        command.args(["--skip", skip]);
    }
    command
}

fn is_quiet(program: &TestProgram, name: &str) -> bool {
    program.id.ends_with(QUIET) || name.contains(QUIET_MODULES)
}

fn special_of(program: &TestProgram) -> Option<&'static Special> {
    SPECIAL.iter().find(|special| special.id == program.id)
}

/// A program that was started.
struct Running<'a> {
    job: Job<'a>,
    child: Child,
    log: PathBuf,
    started: Instant,
    /// The size of the log, and since when it has it.
    written: (u64, Instant),
    patience: Duration,
}

enum End {
    Ended(ExitStatus),
    /// It finished no test for this time.
    Hung(Duration),
}

impl<'a> Running<'a> {
    fn start(job: Job<'a>, tests: &Tests, logs: &Path) -> Result<Self> {
        let special = special_of(job.program);
        let mut command = command(job.program, tests);
        if job.is_quiet {
            // By their names: those of the arguments would add others.
            let flags = tests.args.iter().filter(|arg| arg.starts_with('-'));
            command.args(flags).arg("--exact").args(&job.names);
        } else {
            select(&mut command, tests).args(["--skip", QUIET_MODULES]);
        }
        let threads = if job.is_quiet {
            Some(1)
        } else {
            special.map_or(Some(THREADS), |special| special.threads)
        };
        let is_given = |arg: &String| arg.starts_with("--test-threads");
        if let Some(threads) = threads.filter(|_| !tests.args.iter().any(is_given)) {
            command.arg(format!("--test-threads={threads}"));
        }
        let phase = if job.is_quiet { "-quiet" } else { "" };
        let log = format!("{}{phase}.log", job.program.id.replace("::", "-"));
        let log = logs.join(log);
        let output = File::create(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stderr(output.try_clone()?)
            .stdout(output)
            .spawn()
            .with_context(|| format!("cannot start {}", job.program.path.display()))?;
        let now = Instant::now();
        Ok(Self {
            job,
            child,
            log,
            started: now,
            written: (0, now),
            patience: special.map_or(PATIENCE, |special| special.patience),
        })
    }

    /// Returns how it has ended, if it has. Ends a program that hangs.
    fn end(&mut self) -> Result<Option<End>> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(Some(End::Ended(status)));
        }
        let length = fs::metadata(&self.log)?.len();
        if length != self.written.0 {
            self.written = (length, Instant::now());
        }
        if self.written.1.elapsed() < self.patience {
            return Ok(None);
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(Some(End::Hung(self.patience)))
    }

    /// Prints how it has ended, and returns its counts.
    fn report(self, end: &End, in_full: bool) -> Result<Report> {
        let id = &self.job.program.id;
        let log = String::from_utf8_lossy(&fs::read(&self.log)?).into_owned();
        let counts = Counts::of(&log);
        let trouble = match end {
            End::Ended(status) if status.success() => match counts {
                Some(counts) if counts.all() == self.job.names.len() => None,
                Some(_) => Some(format!("it lists {} tests", self.job.names.len())),
                None => Some("it printed no result".to_owned()),
            },
            End::Ended(status) => Some(status.to_string()),
            End::Hung(patience) => Some(format!("killed: no test ended for {}", pretty(*patience))),
        };
        let counts = counts.unwrap_or_else(|| Counts::so_far(&log));
        let took = pretty(self.started.elapsed());
        let verdict = if trouble.is_none() {
            "ok    "
        } else {
            "FAILED"
        };
        println!("{verdict} {id}: {counts} in {took}");
        if trouble.is_some() || in_full {
            println!("{}", what_failed(&log, in_full));
        }
        let Some(trouble) = trouble else {
            return Ok(Report {
                counts,
                trouble: None,
            });
        };
        let unfinished = unfinished(&self.job.names, &log);
        let mut said = format!("{id} ({trouble}; its output: {})", self.log.display());
        if !unfinished.is_empty() {
            let _ = write!(said, "; without a result: {}", unfinished.join(", "));
        }
        println!("{said}");
        Ok(Report {
            counts,
            trouble: Some(said),
        })
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        // It runs on only if another program could not be started or asked.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The failures of a program's output, or all of it.
fn what_failed(log: &str, in_full: bool) -> &str {
    let failures = log.find("\nfailures:\n").filter(|_| !in_full);
    log.get(failures.unwrap_or(0)..).unwrap_or(log)
}

/// The tests that have no line with their result.
fn unfinished<'a>(names: &'a [String], log: &str) -> Vec<&'a str> {
    let ended: BTreeSet<_> = results(log).map(|(name, _)| name).collect();
    let names = names.iter().map(String::as_str);
    names.filter(|name| !ended.contains(name)).collect()
}

/// The lines `test NAME ... RESULT` of a program's output. With one thread, the name is there before
/// the test begins.
fn results(log: &str) -> impl Iterator<Item = (&str, &str)> {
    log.lines().filter_map(|line| {
        let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
        if !["ok", "FAILED"].contains(&result) && !result.starts_with("ignored") {
            return None;
        }
        let name = name.trim_end();
        Some((name.strip_suffix(" - should panic").unwrap_or(name), result))
    })
}

struct Report {
    counts: Counts,
    trouble: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counts {
    passed: u32,
    failed: u32,
    ignored: u32,
}

impl Counts {
    /// Reads the last line of a program's output, which it prints if it comes to its end.
    fn of(log: &str) -> Option<Self> {
        let line = log
            .lines()
            .rfind(|line| line.starts_with("test result: "))?;
        let count = |what: &str| {
            let mut words = line
                .split([' ', ';'])
                .filter(|word| !word.is_empty())
                .peekable();
            while let Some(word) = words.next() {
                if words.peek() == Some(&what) {
                    return word.parse().ok();
                }
            }
            None
        };
        Some(Self {
            passed: count("passed")?,
            failed: count("failed")?,
            ignored: count("ignored")?,
        })
    }

    fn all(self) -> usize {
        [self.passed, self.failed, self.ignored].iter().sum::<u32>() as usize
    }

    /// Counts the results of a program that did not come to its end.
    fn so_far(log: &str) -> Self {
        let mut counts = Self::default();
        for (_, result) in results(log) {
            match result {
                "ok" => counts.passed += 1,
                "FAILED" => counts.failed += 1,
                _ => {}
            }
        }
        counts
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            passed,
            failed,
            ignored,
        } = self;
        write!(f, "{passed} passed, {failed} failed, {ignored} skipped")
    }
}

/// All programs so far.
#[derive(Default)]
struct Total {
    counts: Counts,
    troubles: Vec<String>,
}

impl Total {
    fn add(&mut self, Report { counts, trouble }: Report) {
        self.counts.passed += counts.passed;
        self.counts.failed += counts.failed;
        self.counts.ignored += counts.ignored;
        self.troubles.extend(trouble);
    }

    /// Prints the sum. An error names the programs that failed.
    fn finish(self) -> Result<()> {
        println!("\n{}", self.counts);
        ensure!(self.troubles.is_empty(), "{}", self.troubles.join("\n"));
        ensure!(
            self.counts.passed > 0,
            "no test has run: no name matches the arguments"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\nrunning 4 tests\ntest a::b ... ok\ntest c - should panic ... ok\n\
        test d ... FAILED\ntest e ... ignored, only by hand\ntest h ... \n\nfailures:\n\n---- d stdout ----\nwhy\n";
    const RESULT: &str = "\ntest result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.00s\n";

    #[test]
    fn a_program_that_came_to_its_end_is_believed() {
        let counts = Counts::of(&format!("{LOG}{RESULT}")).unwrap();
        assert_eq!(
            counts,
            Counts {
                passed: 2,
                failed: 1,
                ignored: 1
            }
        );
        assert_eq!(counts.to_string(), "2 passed, 1 failed, 1 skipped");
    }

    #[test]
    fn of_one_that_was_killed_the_tests_without_a_result_are_named() {
        assert_eq!(Counts::of(LOG), None);
        assert_eq!(
            Counts::so_far(LOG).to_string(),
            "2 passed, 1 failed, 0 skipped"
        );
        let names = ["a::b", "c", "d", "e", "f::g", "h"].map(str::to_owned);
        assert_eq!(unfinished(&names, LOG), ["f::g", "h"]);
    }

    #[test]
    fn of_a_failed_program_the_failures_are_printed() {
        assert!(what_failed(LOG, false).starts_with("\nfailures:\n"));
        assert_eq!(what_failed(LOG, true), LOG);
        assert_eq!(what_failed("killed", false), "killed");
    }
}
