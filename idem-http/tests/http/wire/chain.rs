//! A chain of three services, each with the layer in front and the client behind, and a fault at
//! any of its hops.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use idem_core::{Idempotency, MemoryStore};
use idem_http::{IdempotencyClient, IdempotencyLayer};
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::scripted::read_request;

/// The header by which the hops know what they shall do; a service hands it on.
const CASE: &str = "x-case";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The connection ends before the service has the request.
    CutBefore,
    /// The service answers, and the connection ends before the client has the response.
    CutAfter,
    /// The response comes after the client has sent its next try.
    Delay,
    /// A proxy answers in place of the service.
    Unavailable,
}

const FAULTS: [Fault; 5] = [
    Fault::None,
    Fault::CutBefore,
    Fault::CutAfter,
    Fault::Delay,
    Fault::Unavailable,
];

/// How long a client waits for one try; a delay is longer.
const TRY: Duration = Duration::from_millis(700);

/// The number of a case names the fault of each of the three hops.
fn fault(case: usize, hop: usize) -> Fault {
    FAULTS[case / FAULTS.len().pow(u32::try_from(hop).unwrap()) % FAULTS.len()]
}

fn client() -> ClientWithMiddleware {
    // Each try has a connection of its own, as each has its own fate.
    let reqwest = super::reqwest_builder()
        .timeout(TRY)
        .pool_max_idle_per_host(0)
        .no_proxy()
        .build()
        .unwrap();
    let idempotent = IdempotencyClient::new("chain")
        .tries(100)
        .backoff(Duration::from_millis(20));
    ClientBuilder::new(reqwest)
        .with(
            idempotent
                .deadline(Duration::from_secs(90))
                .keys_from_call(),
        )
        .build()
}

/// How often the bodies of one service ran, for each case.
type Runs = Arc<Mutex<BTreeMap<String, usize>>>;

#[derive(Clone)]
struct Service {
    runs: Runs,
    next: Option<SocketAddr>,
    client: ClientWithMiddleware,
}

async fn handle(State(service): State<Service>, headers: HeaderMap) -> Result<String, StatusCode> {
    let case = headers[CASE].to_str().unwrap().to_owned();
    let run = {
        let mut runs = service.runs.lock().unwrap();
        let run = runs.entry(case.clone()).or_default();
        *run += 1;
        *run
    };
    let Some(next) = service.next else {
        return Ok(format!("{run}"));
    };
    let sent = service
        .client
        .post(format!("http://{next}/step"))
        .header(CASE, case)
        .body("step")
        .send()
        .await;
    let response = sent.map_err(|_| StatusCode::BAD_GATEWAY)?;
    if response.status() != StatusCode::OK {
        return Err(StatusCode::BAD_GATEWAY);
    }
    Ok(format!(
        "{run} {}",
        response.text().await.map_err(|_| StatusCode::BAD_GATEWAY)?
    ))
}

/// Starts a service, and returns the address of the faulty hop before it.
async fn start(hop: usize, next: Option<SocketAddr>) -> (SocketAddr, Runs) {
    let runs = Runs::default();
    let service = Service {
        runs: runs.clone(),
        next,
        client: client(),
    };
    let layer = IdempotencyLayer::new(Idempotency::new(MemoryStore::new()))
        .name("chain")
        .unscoped()
        .required(true);
    let app = Router::new()
        .route("/step", post(handle))
        .with_state(service)
        .layer(layer.wait(Duration::from_secs(60)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let behind = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = proxy.local_addr().unwrap();
    tokio::spawn(async move {
        let seen = Arc::<Mutex<std::collections::BTreeSet<String>>>::default();
        while let Ok((stream, _)) = proxy.accept().await {
            tokio::spawn(pass(stream, behind, hop, seen.clone()));
        }
    });
    (address, runs)
}

/// Passes one request on; the first of its case meets the fault.
async fn pass(
    mut stream: TcpStream,
    behind: SocketAddr,
    hop: usize,
    seen: Arc<Mutex<std::collections::BTreeSet<String>>>,
) -> Option<()> {
    let (_, headers, request) = read_request(&mut stream).await?;
    let case = headers[CASE].to_str().ok()?.to_owned();
    let is_first = seen.lock().unwrap().insert(case.clone());
    let fault = if is_first {
        fault(case.parse().ok()?, hop)
    } else {
        Fault::None
    };
    match fault {
        Fault::CutBefore => return None,
        Fault::Unavailable => {
            stream
                .write_all(b"HTTP/1.1 503 X\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
                .await
                .ok()?;
            return None;
        }
        Fault::None | Fault::CutAfter | Fault::Delay => {}
    }
    let mut service = TcpStream::connect(behind).await.ok()?;
    service.write_all(&request).await.ok()?;
    let mut response = vec![0; 4096];
    let length = service.read(&mut response).await.ok()?;
    match fault {
        Fault::CutAfter => return None,
        Fault::Delay => tokio::time::sleep(TRY + Duration::from_millis(100)).await,
        _ => {}
    }
    stream.write_all(&response[..length]).await.ok()?;
    // The rest, if any.
    tokio::io::copy(&mut service, &mut stream).await.ok()?;
    Some(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_services_run_each_body_once_whatever_happens_at_any_hop() {
    let (third, runs_of_third) = start(2, None).await;
    let (second, runs_of_second) = start(1, Some(third)).await;
    let (first, runs_of_first) = start(0, Some(second)).await;
    let client = client();
    let cases = FAULTS.len().pow(3);
    let calls: Vec<_> = (0..cases)
        .map(|case| {
            let request = client
                .post(format!("http://{first}/step"))
                .header(CASE, case.to_string())
                .body("step");
            tokio::spawn(async move {
                request
                    .send()
                    .await?
                    .text()
                    .await
                    .map_err(reqwest_middleware::Error::from)
            })
        })
        .collect();
    for (case, call) in calls.into_iter().enumerate() {
        let faults = [0, 1, 2].map(|hop| fault(case, hop));
        match call.await.unwrap() {
            Ok(text) => assert_eq!(text, "1 1 1", "{faults:?}"),
            Err(error) => panic!("{faults:?}: {error}"),
        }
    }
    for runs in [runs_of_first, runs_of_second, runs_of_third] {
        let runs = runs.lock().unwrap();
        assert_eq!(runs.len(), cases);
        assert!(runs.values().all(|runs| *runs == 1), "{runs:?}");
    }
}
