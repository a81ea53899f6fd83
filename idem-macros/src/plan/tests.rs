//! The plan's messages about mistakes.

use super::{Args, Errors, Function, Plan};

/// What is wrong with the attribute on the function: the tokens under each caret, and the words.
fn mistakes(args: &str, item: &str) -> Vec<(String, String)> {
    let mut errors = Errors::default();
    let args = Args::parse(args.parse().unwrap(), &mut errors);
    let function = errors.keep(Function::parse(&item.parse().unwrap()));
    let plan = Plan::new(args, function, &mut errors);
    let mistakes = errors.list();
    assert!(
        plan.is_some() || !mistakes.is_empty(),
        "there is neither a plan nor a mistake"
    );
    mistakes
}

#[track_caller]
fn assert_mistakes(args: &str, item: &str, expected: &[(&str, &str)]) {
    let found = mistakes(args, item);
    let as_expected = |((caret, words), (at, part)): (&(String, String), &(&str, &str))| {
        caret == at && words.contains(part)
    };
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(as_expected),
        "found {found:#?}, expected {expected:#?}"
    );
}

const FUNCTION: &str = "async fn charge(id: u64, req: Req) -> Result<u64, E> { .. }";

#[test]
fn every_option_can_be_written_bare_or_in_a_string() {
    for args in [
        r#"key = "req.id""#,
        r#"key = req.id, fingerprint = (req, "req.sum"), ttl = "5m", remember = "30d", lease = "30s","#,
        r#"key = (TENANT, "req.id"), ttl = req.ttl(), in_flight = wait("5s"), runtime = "req.runtime()", detached"#,
        r#"key = "(req.tenant, req.id)", in_flight = wait, duplicate = reject, abandoned = reconcile("find(&req)")"#,
        "key = f::<A, B>(req), in_flight = reject, abandoned = reconcile(find(&req)), max_attempts \
         = 5",
        r#"name = "submit", token = "req.token", subject = id, fingerprint = "req.sum", ttl = "5m", duplicate = reject"#,
        r#"name = "submit", token = req.token, subject = (TENANT, "req.user"), store_failure = reject"#,
        r#"key = req.id, abandoned = reject, hold = "90d""#,
        "key = req.id, abandoned = reconcile(find(&req)), hold = req.hold()",
        r#"key = req.id, hold = "90d""#,
        "key = req.id, observe, outcome_version = 3, upgrade(1 => from_v1, 2 => |old: V2| \
         old.into())",
        "key = req.id, outcome_version = VERSION, upgrade(1 => v1::upgrade)",
        r#"key = req.id, fingerprint = none, store_failure = run, missing_key = run, name = "orders.create", crate = "::idem""#,
    ] {
        assert_mistakes(args, FUNCTION, &[]);
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a row for each mistake")]
fn each_mistake_in_the_options_is_said_at_its_token() {
    for (args, expected) in [
        (
            "",
            (
                "",
                "needs a key: write for example `key = \"req.order_id\"`",
            ),
        ),
        ("key", ("key", "`key` needs a value: write for example")),
        ("key = ", ("=", "`key` needs a value after the `=`")),
        ("key(req.id)", ("(", "expected `=` after `key`")),
        (r#"key = "req.""#, ("\"req.\"", "not a Rust expression")),
        ("key = ()", ("()", "`key` has no parts")),
        ("key = id lease = \"5s\"", ("lease", "expected a comma")),
        ("key = id, key = id", ("key", "`key` is given twice")),
        (
            "key = id, tll = \"5m\"",
            ("tll", "did you mean `ttl`, as in `ttl = \"5m\"`?"),
        ),
        (
            "key = id, colour = 5",
            ("colour", "expected `key`, `token`"),
        ),
        (
            "key = id, detached = true",
            ("=", "`detached` takes no value"),
        ),
        (
            "key = id, observe = true",
            ("=", "`observe` takes no value"),
        ),
        ("key = id, outcome_version = 0", ("0", "1 or more")),
        (
            "key = id, upgrade(1 => old)",
            ("upgrade", "add for example `outcome_version = 2`"),
        ),
        (
            "key = id, outcome_version = 2, upgrade = old",
            ("upgrade", "needs a function for each earlier version"),
        ),
        (
            "key = id, outcome_version = 2, upgrade()",
            ("()", "`upgrade` is empty"),
        ),
        (
            "key = id, outcome_version = 2, upgrade(old)",
            ("old", "the number of an earlier version"),
        ),
        (
            "key = id, outcome_version = 2, upgrade(1 old)",
            ("old", "expected `=>`"),
        ),
        (
            "key = id, outcome_version = 2, upgrade(1 =>)",
            ("=>", "the function that reads version 1"),
        ),
        (
            "key = id, outcome_version = 2, upgrade(2 => old)",
            ("2", "the current one is 2"),
        ),
        (
            "key = id, outcome_version = 2, upgrade(0 => old)",
            ("0", "1 or more"),
        ),
        (
            "key = id, outcome_version = 3, upgrade(1 => a, 1 => b)",
            ("1", "upgraded twice"),
        ),
        (
            "key = id, outcome_version = 2, upgrade(1 => |old| id)",
            ("|old| id", "cannot use the parameter `id`"),
        ),
        (
            "key = id, version = 2",
            ("version", "did you mean `outcome_version`"),
        ),
        ("key = id, ttl = 300", ("300", "needs a unit")),
        ("key = id, lease = \"0s\"", ("\"0s\"", "longer than zero")),
        (
            "key = id, in_flight = wait(\"x\")",
            ("\"x\"", "not a duration"),
        ),
        (
            "key = id, ttl = \"5m\", remember = \"1m\"",
            ("\"1m\"", "`remember` is shorter than `ttl`"),
        ),
        (
            "key = id, abandoned = rerun, hold = \"5d\"",
            ("hold", "with `abandoned = rerun` none does"),
        ),
        (
            "key = id, abandoned = reject, hold = 5",
            ("5", "needs a unit"),
        ),
        (
            "name = \"n\", key = id, token = req, subject = id",
            ("token", "`token` takes the place of `key`"),
        ),
        ("key = id, subject = id", ("subject", "there is no `token`")),
        (
            "subject = id",
            ("subject", "write for example `token = \"form.token\"`"),
        ),
        ("name = \"n\", token = id", ("token", "needs a `subject`")),
        (
            "name = \"n\", token = id, subject = ()",
            ("()", "`subject` has no parts"),
        ),
        (
            "name = \"n\", token = id, subject = id, missing_key = run",
            ("missing_key", "never runs: leave `missing_key` out"),
        ),
        (
            "name = \"n\", token = id, subject = id, store_failure = run",
            ("run", "never runs without the store"),
        ),
        (
            "token = req, subject = id",
            ("token", "issued under the operation's name"),
        ),
        ("key = id, user = id", ("user", "did you mean `subject`")),
        ("key = id, max_attempts = 0", ("0", "1 or more")),
        ("key = id, name = \"\"", ("\"\"", "`name` is empty")),
        (
            "key = id, name = \"orders create\"",
            ("\"orders create\"", "joined by `::`"),
        ),
        ("key = id, name = \"a:b\"", ("\"a:b\"", "joined by `::`")),
        ("key = id, name = 5", ("5", "a string or a constant")),
        (
            "key = [\"id\", \"req\"]",
            ("\"id\"", "write `key = (\"id\", \"req\")`"),
        ),
        ("key = &\"id\"", ("\"id\"", "write `key = \"id\"`")),
        (
            "key = id, fingerprint = [\"id\"]",
            ("\"id\"", "write `fingerprint = \"id\"`"),
        ),
        (
            "key = (id, { \"req\" })",
            ("\"req\"", "stands alone or as a part"),
        ),
        (
            "key = id, name = id",
            ("id", "cannot use the parameter `id`"),
        ),
        (
            "key = id, duplicate = rejct",
            ("rejct", "did you mean `reject`?"),
        ),
        (
            "key = id, duplicate = \"reject\"",
            ("\"reject\"", "write `duplicate = reject`"),
        ),
        (
            "key = id, abandoned = reconcile",
            ("reconcile", "needs a value in parentheses"),
        ),
        (
            "key = id, transaction = tx",
            ("tx", "there is no parameter `tx`"),
        ),
        (
            "key = id, transaction = req",
            ("Req", "write `req: &mut sqlx::Transaction<'_, DB>`"),
        ),
        ("key = id, transaction = 5", ("5", "names a parameter")),
        (
            "key = id, transaction = self",
            ("self", "is a parameter, not `self`"),
        ),
        ("key = id, crate = 5", ("5", "write `crate = \"::idem\"`")),
    ] {
        assert_mistakes(args, FUNCTION, &[expected]);
    }
}

#[test]
fn what_needs_a_lease_has_no_meaning_in_a_transaction() {
    let item = "async fn charge(tx: &mut Tx, id: u64) -> Result<u64, E> { .. }";
    for option in [
        "lease = \"30s\"",
        "abandoned = reject",
        "hold = \"5d\"",
        "store_failure = run",
        "detached",
        "max_attempts = 2",
    ] {
        let word = option.split(' ').next().unwrap();
        let args = format!("key = id, transaction = tx, {option}");
        assert_mistakes(&args, item, &[(word, "has no meaning in a transaction")]);
    }
    for (action, said) in [
        ("retry(max = 3)", "not retried in place"),
        ("abandon", "rolled back"),
    ] {
        let args = format!("key = id, transaction = tx, errors(_ => {action})");
        assert_mistakes(&args, item, &[(action.split('(').next().unwrap(), said)]);
    }
    assert_mistakes(
        "key = id, transaction = tx, ttl = \"5m\", errors(_ => keep)",
        item,
        &[],
    );
}

#[test]
fn a_transaction_is_a_parameter_of_its_own() {
    for pattern in [
        "(tx, id): (&mut Tx, u64)",
        "Json(Req { tx, id }): Json<Req>",
        "Req { inner: tx, id, .. }: Req",
    ] {
        let item = format!("async fn charge({pattern}) -> Result<u64, E> {{ .. }}");
        assert_mistakes(
            "key = id, transaction = tx",
            &item,
            &[(
                "tx",
                "a parameter of its own: write `tx: &mut sqlx::Transaction<'_, DB>`",
            )],
        );
    }
}

#[test]
fn all_mistakes_are_said_at_once() {
    let expected = [
        ("ttll", "did you mean"),
        ("fn", "async fn charge"),
        ("\"x\"", "not a duration"),
        ("0", "1 or more"),
    ];
    let item = "fn charge(id: u64) -> R { .. }";
    assert_mistakes(
        "key = id, ttll = f(a, b), lease = \"x\", max_attempts = 0",
        item,
        &expected,
    );
}

#[test]
fn what_cannot_be_guarded_is_said_where_it_is_seen() {
    for (item, expected) in [
        (
            "async fn f(&self) -> R {}",
            ("&self", "a method needs a name"),
        ),
        (
            "async fn f() -> Result<Self, E> {}",
            ("Self", "a method needs a name"),
        ),
        (
            "async fn f<T>(t: T) -> R {}",
            ("T", "a generic function needs a name"),
        ),
        (
            "async fn f(t: Json<impl Into<u8>>) -> R {}",
            ("impl Into<u8>", "a generic function needs a name"),
        ),
        ("async fn f() {}", ("f", "must return a `Result`")),
        ("async fn f() -> () {}", ("()", "must return a `Result`")),
        (
            "async fn f() -> Result<impl Send, E> {}",
            ("impl Send", "a type with a name"),
        ),
        (
            "fn f() -> impl Future<Output = R> {}",
            ("impl Future<Output = R>", "write `async fn f`"),
        ),
        ("const fn f() -> R {}", ("const", "cannot be guarded")),
        (
            "extern \"C\" fn f() -> R {}",
            ("extern \"C\"", "from other languages"),
        ),
        ("async fn f() -> R;", (";", "without a body")),
        (
            "pub struct Orders { id: u64 }",
            ("struct", "not on a struct"),
        ),
        (
            "unsafe impl Orders {}",
            ("impl", "put it on the methods inside"),
        ),
        ("const N: u8 = 1;", ("const", "not on a constant")),
    ] {
        assert_mistakes("key = 1", item, &[expected]);
    }
}
