//! Every target over its corpus, and over what a few dice make of it, without libFuzzer.

use std::fs;
use std::panic;
use std::path::Path;

use fastrand::Rng;

/// Of each target.
const MUTATIONS: usize = 4_000;

/// A test of its own for each target, so that one failure hides no other.
macro_rules! targets {
    ($($target:ident),*) => {
        const TARGETS: &[&str] = &[$(stringify!($target)),*];
        $(
        #[test]
        fn $target() {
            check(stringify!($target), idem_fuzz::$target::run);
        }
        )*
    };
}

targets!(record, claim, key, duration, outcome, token, url);

#[test]
fn every_folder_of_the_corpus_has_a_target() {
    for folder in fs::read_dir(root()).unwrap() {
        let name = folder.unwrap().file_name();
        assert!(
            TARGETS.iter().any(|target| name == *target),
            "no target is named {}",
            name.display()
        );
    }
}

/// Runs a target over its corpus and over changes of it.
fn check(name: &str, target: fn(&[u8])) {
    let corpus = corpus(name);
    for seed in &corpus {
        run(name, target, seed);
    }
    // The same dice each time.
    let mut rng = Rng::with_seed(0x1de3);
    for _ in 0..MUTATIONS {
        run(name, target, &mutated(&corpus, &mut rng));
    }
}

fn run(name: &str, target: fn(&[u8]), data: &[u8]) {
    if let Err(panic) = panic::catch_unwind(|| target(data)) {
        println!(
            "The target `{name}` failed over b\"{}\".",
            data.escape_ascii()
        );
        panic::resume_unwind(panic);
    }
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus"))
}

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let mut files: Vec<_> = fs::read_dir(root().join(name))
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "`{name}` has no corpus");
    files
        .into_iter()
        .map(|file| fs::read(file).unwrap())
        .collect()
}

/// One of the corpus, with up to four changes.
fn mutated(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut data = rng.choice(corpus).unwrap().clone();
    for _ in 0..rng.usize(1..=4) {
        let at = rng.usize(0..=data.len());
        match rng.u8(0..7) {
            0 => data.insert(at, rng.u8(..)),
            1 => data.truncate(at),
            2 => data.insert(at, *rng.choice(b" .:-~%(){}@?#/\"'0123456789wism").unwrap()),
            // Two of the corpus, grafted.
            3 => {
                let other = rng.choice(corpus).unwrap();
                data.truncate(at);
                data.extend_from_slice(&other[rng.usize(0..=other.len())..]);
            }
            _ if at == data.len() => {}
            4 => data[at] ^= 1 << rng.u8(0..8),
            5 => data[at] = rng.u8(..),
            _ => drop(data.remove(at)),
        }
    }
    data
}
