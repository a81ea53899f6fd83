//! `idem_fuzz::token` under libFuzzer; built without it, a program that runs it over the files that
//! it is given.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| idem_fuzz::token::run(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    idem_fuzz::repeat(idem_fuzz::token::run)
}
