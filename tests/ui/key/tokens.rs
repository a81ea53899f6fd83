//! A token instead of a key.

use idem::{Error, Token, idempotent};

struct Form {
    token: String,
    copies: u32,
    weight: f64,
}

#[idempotent(name = "n", key = "form.copies", token = "form.token", subject = "user")]
async fn both(user: u64, form: Form) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = "form.copies", subject = "user")]
async fn subject_of_a_key(user: u64, form: Form) -> Result<(), Error> {
    Ok(())
}

#[idempotent(subject = "user")]
async fn subject_alone(user: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(name = "n", token = "form.token")]
async fn whose(form: Form) -> Result<(), Error> {
    Ok(())
}

#[idempotent(name = "n", token = "form.token", subject = "user", missing_key = run, store_failure = run)]
async fn unguarded(user: u64, form: Form) -> Result<(), Error> {
    Ok(())
}

#[idempotent(name = "n", token = "form.token", subject = "user", store_failure = (run))]
async fn unguarded_in_parentheses(user: u64, form: Form) -> Result<(), Error> {
    Ok(())
}

#[idempotent(name = "n", token = "form.copies", subject = "user")]
async fn no_token(user: u64, form: Form) -> Result<(), Error> {
    Ok(())
}

#[idempotent(name = "n", token = "form.token", subject = "form.weight")]
async fn no_subject(form: Form) -> Result<(), Error> {
    Ok(())
}

#[idempotent(name = "n", token = "token", subject = ("user", "form.weight"))]
async fn no_part_of_a_subject(user: u64, token: Token, form: Form) -> Result<(), Error> {
    Ok(())
}

#[idempotent(token = "form.token", subject = "user")]
async fn no_name(user: u64, form: Form) -> Result<(), Error> {
    Ok(())
}

fn main() {}
