//! Certificates, made with openssl.

use std::path::Path;
use std::process::Command;

/// Makes a self-signed certificate for a name, such as `DNS:localhost`, and its key beside it.
/// Returns the path of the certificate; that of the key ends in `.key`.
pub(crate) fn certificate(dir: &Path, file: &str, subject: &str) -> String {
    let file = dir.join(file).to_str().unwrap().to_owned();
    let kind = [
        "req",
        "-x509",
        "-nodes",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-days",
        "2",
    ];
    let made = Command::new("openssl")
        .args(kind)
        .args(["-subj", "/CN=localhost"])
        .args(["-addext", &format!("subjectAltName={subject}")])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-out", &file, "-keyout", &format!("{file}.key")])
        .output()
        .expect("openssl is installed");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    file
}

/// Runs a test of this program again, in a process whose platform trusts the certificates of one
/// file, and returns what it printed after `store: `. The environment says which file it is, and a
/// process cannot safely change its own environment.
pub(crate) fn said(test: &str, trusted: &str, variable: &str, value: &str) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env("SSL_CERT_FILE", trusted)
        .env_remove("SSL_CERT_DIR")
        .env(variable, value)
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let said = printed.lines().find_map(|line| line.split_once("store: "));
    let errors = String::from_utf8_lossy(&output.stderr);
    said.unwrap_or_else(|| panic!("{printed}\n{errors}"))
        .1
        .to_owned()
}
