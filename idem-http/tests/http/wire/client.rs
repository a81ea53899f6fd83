//! The client's action on each result of a try.

use std::time::Duration;

use http::StatusCode;
use idem_core::{Error, Idempotency, MemoryStore};
use idem_http::{IdempotencyClient, InvalidKey, RequestKey, UnknownOutcome};
use idem_testkit::HeldPort;
use reqwest::Body;
use tokio::time::Instant;

use super::scripted::{Act, Script, hinted, reply};

const URL: &str = "http://service.example/charges?secret=1";

fn client() -> IdempotencyClient {
    IdempotencyClient::new("checkout")
}

/// A client over real connections that hardly pauses.
fn quick() -> reqwest_middleware::ClientWithMiddleware {
    let reqwest = super::reqwest_builder()
        .pool_max_idle_per_host(0)
        .no_proxy()
        .build()
        .unwrap();
    reqwest_middleware::ClientBuilder::new(reqwest)
        .with(client().backoff(Duration::from_millis(1)))
        .build()
}

fn problem(code: &'static str) -> Act {
    let body = match code {
        "abandoned" => r#"{"error": {"type": "idempotency_error", "code": "abandoned"}}"#,
        "store" => r#"{"error": {"type": "idempotency_error", "code": "store"}}"#,
        _ => r#"{"error": {"type": "idempotency_error", "code": "already_done"}}"#,
    };
    let status = if code == "store" { 503 } else { 409 };
    Act::Reply(
        status,
        vec![("content-type", "application/problem+json".into())],
        body,
    )
}

#[tokio::test]
async fn all_tries_of_a_request_carry_one_key_through_lost_connections_and_errors() {
    let acts = [Act::Cut, Act::LoseReply, reply(503), reply(201)];
    let script = Script::new(acts);
    let url = format!("http://{}/charges", script.serve().await);
    let response = quick().post(&url).body("cents=1").send().await.unwrap();
    assert_eq!(
        (response.status(), response.url().as_str()),
        (StatusCode::CREATED, url.as_str())
    );
    assert_eq!(response.text().await.unwrap(), "text");
    assert_eq!(script.got().len(), 3);
    assert!(script.key().starts_with("checkout-"), "{}", script.key());
}

#[tokio::test]
async fn a_response_that_is_cut_in_its_body_is_a_lost_one() {
    let script = Script::new([Act::HalfReply, reply(200)]);
    let url = format!("http://{}/charges", script.serve().await);
    assert_eq!(
        quick()
            .post(url)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap(),
        "text"
    );
    assert_eq!(script.got().len(), 2);
}

#[tokio::test]
async fn a_refused_connection_is_not_unknown() {
    let nobody = HeldPort::hold().unwrap();
    let url = format!("http://127.0.0.1:{}/charges", nobody.port());
    let error = quick().post(url).send().await.unwrap_err();
    assert!(error.is_connect(), "{error}");
    assert!(UnknownOutcome::find(&error).is_none());
}

#[tokio::test]
async fn lost_replies_end_in_an_error_that_says_unknown_and_holds_the_key() {
    let script = Script::new([
        Act::LoseReply,
        Act::LoseReply,
        Act::LoseReply,
        Act::LoseReply,
    ]);
    let url = format!("http://{}/charges?secret=1", script.serve().await);
    let error = quick()
        .post(url)
        .with_extension(RequestKey::new("order-7"))
        .send()
        .await
        .unwrap_err();
    let unknown = UnknownOutcome::find(&error).expect("unknown");
    assert_eq!(
        (unknown.key().as_str(), unknown.tries(), unknown.status()),
        ("order-7", 4, None)
    );
    assert_eq!(script.got().len(), 4);
    let text = format!("{error} {unknown:?}");
    assert!(
        text.contains("unknown") && text.contains("POST 127.0.0.1/charges"),
        "{text}"
    );
    assert!(
        !text.contains("order-7") && !text.contains("secret"),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_of_the_caller_is_kept_and_is_the_only_one() {
    let script = Script::new([reply(200), reply(500), reply(200), reply(200)]);
    let client = script.client(client());
    client
        .post(URL)
        .header("idempotency-key", "\"mine\"")
        .with_extension(RequestKey::new("other"))
        .send()
        .await
        .unwrap();
    assert_eq!(script.got()[0].keys(), ["\"mine\""]);
    client
        .patch(URL)
        .with_extension(RequestKey::new(7))
        .send()
        .await
        .unwrap();
    assert_eq!(
        (script.got()[1].keys(), script.got()[2].keys()),
        (vec!["7"], vec!["7"])
    );
    // A request that needs no key gets one only if its caller says so.
    client.get(URL).send().await.unwrap();
    assert!(script.got()[3].keys().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_with_a_comma_is_sent_in_quotes_and_one_that_the_caller_has_set_is_not_changed() {
    let script = Script::new([reply(200), reply(200)]);
    let client = script.client(client());
    client
        .post(URL)
        .with_extension(RequestKey::new("order,7;a"))
        .send()
        .await
        .unwrap();
    client
        .post(URL)
        .header("idempotency-key", "order,7;a")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (script.got()[0].keys(), script.got()[1].keys()),
        (vec!["\"order,7;a\""], vec!["order,7;a"])
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_key_of_its_own_is_sent_once_if_its_method_is_idempotent() {
    let script = Script::new([reply(503)]);
    assert_eq!(
        script
            .client(client())
            .put(URL)
            .send()
            .await
            .unwrap()
            .status(),
        503
    );
}

#[tokio::test(start_paused = true)]
async fn an_invalid_key_is_refused_before_anything_is_sent() {
    let script = Script::default();
    let client = script.client(client());
    let reason = |error: reqwest_middleware::Error| match error {
        reqwest_middleware::Error::Middleware(error) => {
            *error.downcast_ref::<InvalidKey>().expect("an invalid key")
        }
        error @ reqwest_middleware::Error::Reqwest(_) => panic!("{error}"),
    };
    for (key, expected) in [
        ("", InvalidKey::Empty),
        ("a b", InvalidKey::NotVisible),
        ("\"a", InvalidKey::Quotes),
    ] {
        let error = client
            .post(URL)
            .with_extension(RequestKey::new(key))
            .send()
            .await
            .unwrap_err();
        assert_eq!(reason(error), expected, "{key:?}");
    }
    let twice = client
        .post(URL)
        .header("idempotency-key", "a")
        .header("idempotency-key", "b")
        .send()
        .await;
    assert_eq!(reason(twice.unwrap_err()), InvalidKey::Repeated);
    let prefix = script
        .client(IdempotencyClient::new("ä"))
        .post(URL)
        .send()
        .await;
    assert_eq!(reason(prefix.unwrap_err()), InvalidKey::NotVisible);
    assert!(script.got().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_final_answer_is_returned_as_it_is() {
    for status in [200, 201, 303, 400, 402, 404, 422, 501] {
        let script = Script::new([reply(503), reply(status)]);
        assert_eq!(
            script
                .client(client())
                .post(URL)
                .send()
                .await
                .unwrap()
                .status(),
            status
        );
    }
    let script = Script::new([hinted(500, "idempotent-replayed", "true")]);
    assert_eq!(
        script
            .client(client())
            .post(URL)
            .send()
            .await
            .unwrap()
            .status(),
        500
    );
    let script = Script::new([problem("already_done")]);
    assert_eq!(
        script
            .client(client())
            .post(URL)
            .send()
            .await
            .unwrap()
            .status(),
        409
    );
}

#[tokio::test(start_paused = true)]
async fn statuses_that_may_hide_an_effect_end_as_unknown_and_others_as_they_are() {
    for (status, is_unknown) in [
        (408, true),
        (409, false),
        (425, false),
        (429, false),
        (500, true),
        (502, true),
        (503, true),
        (504, true),
    ] {
        let script = Script::new([reply(status), reply(status), reply(status), reply(status)]);
        let sent = script.client(client()).post(URL).send().await;
        match sent {
            Ok(response) => assert!(!is_unknown && response.status() == status, "{status}"),
            Err(error) => {
                let unknown = UnknownOutcome::find(&error).expect("unknown");
                assert_eq!(
                    (
                        is_unknown,
                        unknown.status().unwrap().as_u16(),
                        unknown.tries()
                    ),
                    (true, status, 4)
                );
            }
        }
        assert_eq!(script.got().len(), 4, "{status}");
    }
    // In flight until the tries end; and abandoned, which no try changes.
    let in_flight = || hinted(409, "retry-after", "1");
    for acts in [
        vec![in_flight(), in_flight(), in_flight(), in_flight()],
        vec![problem("abandoned")],
    ] {
        let script = Script::new(acts);
        let error = script.client(client()).post(URL).send().await.unwrap_err();
        assert_eq!(
            UnknownOutcome::find(&error).unwrap().status(),
            Some(StatusCode::CONFLICT)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_failed_may_have_committed_the_handlers_transaction() {
    let script = Script::new([problem("store"), reply(409)]);
    let error = script
        .client(client().tries(2))
        .post(URL)
        .send()
        .await
        .unwrap_err();
    assert_eq!(UnknownOutcome::find(&error).expect("unknown").tries(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_a_lost_try_does_not_hide_that_try() {
    for status in [401, 403] {
        let script = Script::new([reply(504), reply(status)]);
        let error = script.client(client()).post(URL).send().await.unwrap_err();
        assert_eq!(
            UnknownOutcome::find(&error)
                .unwrap()
                .status()
                .unwrap()
                .as_u16(),
            status
        );
        let script = Script::new([reply(status)]);
        assert_eq!(
            script
                .client(client())
                .post(URL)
                .send()
                .await
                .unwrap()
                .status(),
            status
        );
    }
}

#[tokio::test(start_paused = true)]
async fn pauses_are_those_that_the_server_suggests_or_double() {
    let script = Script::new([
        hinted(429, "retry-after", "3"),
        hinted(503, "retry-after-ms", "1500"),
        reply(500),
        reply(500),
        reply(200),
    ]);
    script
        .client(client().tries(5))
        .post(URL)
        .send()
        .await
        .unwrap();
    let pauses = script.pauses();
    for (pause, range) in pauses
        .iter()
        .zip([3000..=3751, 1500..=1876, 400..=801, 800..=1601])
    {
        assert!(range.contains(pause), "{pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hint_that_is_no_pause_is_none() {
    let hints = ["0", "-5", "soon", "Thu, 01 Jan 1970 00:00:00 GMT", "NaN"];
    let acts = hints
        .iter()
        .map(|hint| hinted(503, "retry-after", hint))
        .chain([reply(200)]);
    let script = Script::new(acts);
    script
        .client(client().tries(6))
        .post(URL)
        .send()
        .await
        .unwrap();
    let pauses = script.pauses();
    for (pause, least) in pauses.iter().zip([100, 200, 400, 800, 1600]) {
        assert!((least..=2 * least + 1).contains(pause), "{pauses:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_request_has_a_key_of_its_own_also_clones_of_one() {
    let script = Script::new([reply(503), reply(200), reply(503), reply(200), reply(200)]);
    let client = script.client(client());
    let request = client.post(URL).body("cents=1");
    request.try_clone().unwrap().send().await.unwrap();
    request.send().await.unwrap();
    client
        .clone()
        .post(URL)
        .body("cents=1")
        .send()
        .await
        .unwrap();
    let got = script.got();
    let keys: Vec<_> = got.iter().map(|got| got.keys()[0]).collect();
    assert!(keys[0] == keys[1] && keys[2] == keys[3], "{keys:?}");
    assert!(
        keys[0] != keys[2] && keys[2] != keys[4] && keys[0] != keys[4],
        "{keys:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_hint_not_to_retry_is_followed_and_one_to_retry_too() {
    let script = Script::new([hinted(429, "stripe-should-retry", "false")]);
    assert_eq!(
        script
            .client(client())
            .post(URL)
            .send()
            .await
            .unwrap()
            .status(),
        429
    );
    let script = Script::new([hinted(500, "x-should-retry", "false")]);
    assert!(
        UnknownOutcome::find(&script.client(client()).post(URL).send().await.unwrap_err())
            .is_some()
    );
    for name in ["x-should-retry", "stripe-should-retry"] {
        for status in [501, 505, 507] {
            let script = Script::new([hinted(status, name, "true"), reply(200)]);
            let response = script.client(client()).post(URL).send().await.unwrap();
            assert_eq!(response.status(), 200, "{status} {name}");
        }
        // A request that was refused is not sent again, whatever the hint says.
        let script = Script::new([hinted(422, name, "true")]);
        assert_eq!(
            script
                .client(client())
                .post(URL)
                .send()
                .await
                .unwrap()
                .status(),
            422
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_asks_for_a_retry_to_the_end_has_given_no_answer() {
    let script = Script::new([
        hinted(501, "x-should-retry", "true"),
        hinted(501, "x-should-retry", "true"),
    ]);
    let error = script
        .client(client().tries(2))
        .post(URL)
        .send()
        .await
        .unwrap_err();
    assert_eq!(UnknownOutcome::find(&error).unwrap().status().unwrap(), 501);
}

#[tokio::test(start_paused = true)]
async fn a_pause_beyond_the_deadline_ends_the_tries_immediately() {
    let begun = Instant::now();
    let script = Script::new([hinted(429, "retry-after", "31")]);
    assert_eq!(
        script
            .client(client())
            .post(URL)
            .send()
            .await
            .unwrap()
            .status(),
        429
    );
    let script = Script::new([hinted(503, "retry-after", "31")]);
    let error = script.client(client()).post(URL).send().await.unwrap_err();
    assert_eq!(UnknownOutcome::find(&error).unwrap().tries(), 1);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_a_try_that_hangs() {
    let begun = Instant::now();
    let script = Script::new([reply(503), Act::Hang]);
    let error = script
        .client(client().deadline(Duration::from_secs(7)))
        .post(URL)
        .send()
        .await
        .unwrap_err();
    let unknown = UnknownOutcome::find(&error).unwrap();
    assert_eq!((unknown.tries(), unknown.status()), (2, None));
    assert_eq!(begun.elapsed(), Duration::from_secs(7));
    // Longer than a clock can express: no deadline.
    let script = Script::new([reply(503), reply(200)]);
    script
        .client(client().deadline(Duration::MAX))
        .post(URL)
        .send()
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_body_that_cannot_be_sent_twice_is_sent_once() {
    let stream = || Body::wrap(http_body_util::Full::new(bytes::Bytes::from("cents=1")));
    let script = Script::new([reply(429)]);
    assert_eq!(
        script
            .client(client())
            .post(URL)
            .body(stream())
            .send()
            .await
            .unwrap()
            .status(),
        429
    );
    let script = Script::new([reply(502)]);
    let error = script
        .client(client())
        .post(URL)
        .body(stream())
        .send()
        .await
        .unwrap_err();
    assert_eq!(UnknownOutcome::find(&error).unwrap().tries(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_in_a_guarded_body_has_a_child_key_that_a_rerun_sends_again() {
    let script = Script::new((0..6).map(|_| reply(200)));
    let client = script.client(client().keys_from_call());
    let idempotency = Idempotency::new(MemoryStore::new());
    for attempt in 0..2 {
        let body = || async {
            client.post(URL).send().await.unwrap();
            client
                .post("http://other.example/charges")
                .send()
                .await
                .unwrap();
            client
                .post(URL)
                .with_extension(RequestKey::child("second"))
                .send()
                .await
                .unwrap();
            if attempt == 0 {
                Err(Error::missing_key("t"))
            } else {
                Ok(())
            }
        };
        let _ = idempotency.operation("t").key("k").run(body).await;
    }
    let got = script.got();
    let keys: Vec<_> = got.iter().map(|got| got.keys()[0]).collect();
    assert_eq!(keys[..3], keys[3..]);
    assert!(
        keys[0] != keys[1] && keys[0] != keys[2] && keys[1] != keys[2],
        "{keys:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn outside_of_a_guarded_body_keys_are_generated_and_a_child_key_is_refused() {
    let script = Script::new([reply(200)]);
    let client = script.client(client().keys_from_call());
    client.post(URL).send().await.unwrap();
    assert!(script.key().starts_with("checkout-"));
    let error = client
        .post(URL)
        .with_extension(RequestKey::child("c"))
        .send()
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("outside of a guarded body"),
        "{error}"
    );
    assert_eq!(script.got().len(), 1);
}
