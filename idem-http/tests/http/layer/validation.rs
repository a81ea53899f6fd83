//! Responses that say that a request is invalid.

use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::post;
use axum::{Json, Router};

use crate::support::{Site, layer, request, send};

#[tokio::test]
async fn a_validation_error_is_recorded_unless_the_author_says_that_it_releases_the_key() {
    #[derive(serde::Deserialize)]
    struct Charge {
        cents: u64,
    }
    let charge = async |Json(charge): Json<Charge>| charge.cents.to_string();
    for releases in [false, true] {
        let site = Site::new();
        let layer = layer(&site.idempotency);
        let layer = if releases {
            layer.release_validation_errors()
        } else {
            layer
        };
        let app = Router::new()
            .route("/charges", post(charge))
            .route_layer(layer);
        let sent = async |key: &str, body: &'static str| {
            let request = request(key).header(CONTENT_TYPE, "application/json");
            send(&app, request.body(Body::from(body)).unwrap()).await
        };
        for (key, invalid, status) in [("a", "{\"cents\": -1}", 422), ("b", "{\"cents\":", 400)] {
            for replayed in [false, !releases] {
                let refused = sent(key, invalid).await;
                assert_eq!(refused.status.as_u16(), status);
                assert_eq!(
                    refused.headers.contains_key("idempotent-replayed"),
                    replayed,
                    "{key}"
                );
            }
            let corrected = sent(key, "{\"cents\": 1}").await;
            if releases {
                assert_eq!((corrected.status, &*corrected.text), (StatusCode::OK, "1"));
                assert!(
                    sent(key, "{\"cents\": 1}")
                        .await
                        .headers
                        .contains_key("idempotent-replayed")
                );
            } else {
                assert_eq!(
                    (corrected.status.as_u16(), &*corrected.code()),
                    (422, "fingerprint_mismatch")
                );
            }
        }
        // Other statuses are recorded as before.
        assert_eq!(sent("c", "{\"cents\": 1}").await.text, "1");
        assert!(
            sent("c", "{\"cents\": 1}")
                .await
                .headers
                .contains_key("idempotent-replayed")
        );
    }
}
