//! The client asks what became of a request before it says unknown.

use std::time::Duration;

use http::StatusCode;
use idem_http::{IdempotencyClient, RequestKey, UnknownOutcome};
use tokio::time::Instant;

use super::scripted::{Act, Script, hinted, reply};

const URL: &str = "http://service.example/charges";

fn client() -> IdempotencyClient {
    IdempotencyClient::new("checkout")
        .tries(1)
        .lookup_url(|request, key| format!("{}/by-key/{key}", request.url()))
}

#[tokio::test(start_paused = true)]
async fn a_recorded_response_is_the_result() {
    let script = Script::new([
        reply(504),
        hinted(202, "retry-after", "1"),
        hinted(201, "idempotent-replayed", "true"),
    ]);
    let request = script
        .client(client())
        .post(URL)
        .header("authorization", "me")
        .json_type();
    let response = request
        .with_extension(RequestKey::new("order/7"))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    let asked = &script.got()[1];
    assert_eq!(
        asked.line,
        "GET http://service.example/charges/by-key/order%2F7"
    );
    assert_eq!(asked.headers["authorization"], "me");
    assert!(
        asked.keys().is_empty() && !asked.headers.contains_key("content-type"),
        "{asked:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_recorded_response_it_stays_unknown_and_says_what_the_lookup_said() {
    for status in [404, 409, 410] {
        let script = Script::new([reply(504), reply(status)]);
        let error = script.client(client()).post(URL).send().await.unwrap_err();
        let unknown = UnknownOutcome::find(&error).unwrap();
        assert_eq!(unknown.lookup_status().unwrap().as_u16(), status);
        assert_eq!(unknown.status(), Some(StatusCode::GATEWAY_TIMEOUT));
        assert!(
            error.to_string().contains(&format!("lookup: {status}")),
            "{error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_lookup_has_five_seconds_after_the_deadline_and_asks_until_then() {
    let begun = Instant::now();
    let script = Script::new([Act::Hang, reply(503), Act::Hang]);
    let error = script
        .client(client().deadline(Duration::from_secs(2)))
        .post(URL)
        .send()
        .await
        .unwrap_err();
    assert_eq!(
        UnknownOutcome::find(&error).unwrap().lookup_status(),
        Some(StatusCode::SERVICE_UNAVAILABLE)
    );
    assert_eq!(begun.elapsed(), Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_suggests_no_pause_is_not_asked_without_one() {
    let hints = [
        hinted(202, "retry-after", "0"),
        hinted(503, "retry-after-ms", "0"),
        hinted(202, "retry-after", "-5"),
        hinted(201, "idempotent-replayed", "true"),
    ];
    let script = Script::new([vec![reply(504)], hints.to_vec()].concat());
    assert_eq!(
        script
            .client(client())
            .post(URL)
            .send()
            .await
            .unwrap()
            .status(),
        StatusCode::CREATED
    );
    let pauses = script.pauses();
    assert!(pauses[1..].iter().all(|pause| *pause >= 100), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_begins_with_a_quotation_mark_is_looked_up_by_a_value_that_means_it() {
    let script = Script::new([reply(504), hinted(201, "idempotent-replayed", "true")]);
    script
        .client(client())
        .post(URL)
        .header("idempotency-key", r#""\"a""#)
        .send()
        .await
        .unwrap();
    assert_eq!(
        script.got()[1].line,
        "GET http://service.example/charges/by-key/%22%5C%22a%22"
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_looked_up_where_the_result_is_known() {
    let script = Script::new([reply(429)]);
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
    assert_eq!(script.got().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn credentials_do_not_go_to_another_host() {
    let script = Script::new([reply(504), reply(404)]);
    let client = client().lookup_url(|_, key| format!("http://other.example/{key}"));
    let sent = script
        .client(client)
        .post(URL)
        .header("authorization", "me")
        .send()
        .await;
    assert!(sent.is_err());
    assert!(!script.got()[1].headers.contains_key("authorization"));
}

#[tokio::test(start_paused = true)]
async fn a_url_that_is_none_is_refused_before_anything_is_sent() {
    let script = Script::default();
    let client = client().lookup_url(|_, key| format!("by-key/{key}"));
    assert!(
        script
            .client(client)
            .post(URL)
            .send()
            .await
            .unwrap_err()
            .is_builder()
    );
    assert!(script.got().is_empty());
}

trait JsonType {
    fn json_type(self) -> Self;
}

impl JsonType for reqwest_middleware::RequestBuilder {
    fn json_type(self) -> Self {
        self.header("content-type", "application/json").body("{}")
    }
}
