//! The example `workers`, whose worker is killed while it pays, and an operator with
//! the program `idem`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

const OPERATION: &str = "workers.payment";
const KEY: &str = "o-1";
const RECEIPT: &str = "paid, receipt 7";
/// The lease of the example is 2 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// The example, which ends with this.
struct Example(Child);

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Finds the payment that was cut off, settles it, and has the next call replay that.
pub(crate) fn run(workers: &Path, idem: &Path, url: &str) -> Result<()> {
    let child = Command::new(workers)
        .args(["--reject", "--redis", url])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut example = Example(child);
    let mut says = BufReader::new(
        example
            .0
            .stdout
            .take()
            .context("the example has no output")?,
    );
    let mut line = String::new();
    while !line.contains("idem settle") {
        line.clear();
        ensure!(
            says.read_line(&mut line)? > 0,
            "the example ended before its worker was killed"
        );
    }
    let operator = |args: &[&str], input: &str| operate(idem, url, args, input);
    let begun = Instant::now();
    while !operator(&["list", "--state", "abandoned"], "")?.contains(OPERATION) {
        ensure!(
            begun.elapsed() < PATIENCE,
            "the payment is not listed as abandoned"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    print!("{}", operator(&["show", OPERATION, KEY], "")?);
    let settle = [
        "settle",
        OPERATION,
        KEY,
        "--value",
        "-",
        "--yes",
        "--reason",
        "the bank has it",
    ];
    print!("{}", operator(&settle, &format!("\"{RECEIPT}\""))?);
    let mut rest = String::new();
    says.read_to_string(&mut rest)?;
    print!("{rest}");
    if !rest.contains(RECEIPT) || !example.0.wait()?.success() {
        bail!("the next call did not replay what was settled");
    }
    Ok(())
}

/// Runs the program `idem` on the store, and returns what it prints.
fn operate(idem: &Path, url: &str, args: &[&str], input: &str) -> Result<String> {
    let mut command = Command::new(idem);
    command
        .args(args)
        .env("IDEM_STORE", url)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start the program idem")?;
    // It may have ended without reading.
    let _ = child
        .stdin
        .take()
        .context("no input")?
        .write_all(input.as_bytes());
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "idem {}: {}",
        args.join(" "),
        output.status
    );
    Ok(String::from_utf8(output.stdout)?)
}
