//! Messages that an owner sent in time, and that arrive while another owner's body runs.

use idem::{Begin, Idempotency, RecordState};
use idem_testkit::{Gate, Mishap, Proxy, RedisServer};

use crate::owner::{Call, Does};
use crate::server::Kind;
use crate::support::{LEASE, LONG, eventually, patient_store};
use crate::wire::Step;

/// How many scripts the server has run for clients.
async fn scripts(server: &RedisServer) -> u64 {
    let stats = server
        .cli(&["INFO", "commandstats"])
        .await
        .unwrap()
        .to_string();
    let calls = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="))
        .unwrap();
    calls.split(',').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p3_a_message_of_a_late_owner_that_arrives_under_the_next_ones_body_changes_nothing() {
    tokio::join!(
        changes_nothing(Step::Commit, Does::Ends),
        changes_nothing(Step::Release, Does::Fails),
        changes_nothing(Step::Renew, Does::NeverEnds),
        changes_nothing(Step::Undo, Does::GivesUp),
    );
}

async fn changes_nothing(step: Step, does: Does) {
    let server = RedisServer::start().await.unwrap();
    let proxy = Proxy::start(&server.url()).await.unwrap();
    let gate = Gate::new();
    if step == Step::Undo {
        Step::Claim
            .passing(Kind::Redis, &proxy)
            .always(Mishap::HangReply(Gate::new()));
    }
    step.passing(Kind::Redis, &proxy)
        .always(Mishap::Hang(gate.clone()));
    let call = Call {
        url: proxy.url(),
        direct: server.url(),
        port: server.port(),
        operation: "late".to_owned(),
        does,
        // It ends before the store has another connection in place of one that is silent.
        lease: LEASE * 2,
    };
    let late = call.runtime().await;
    let first = tokio::spawn(call.carry_out(late));
    tokio::time::timeout(LONG, gate.reached()).await.unwrap();

    let other = Idempotency::new(patient_store(&server.url()).await);
    let operation = || other.operation("late").key("k").lease(LONG);
    let Begin::Execute(lease) = operation().wait(LONG).begin().await.unwrap() else {
        panic!("{step:?}: replayed")
    };
    assert_eq!(lease.attempt(), 2, "{step:?}");
    let before = operation().inspect().await.unwrap().unwrap().expires_in;
    let run = scripts(&server).await;
    gate.open();
    eventually("it has arrived", async || scripts(&server).await > run).await;

    let info = operation().inspect().await.unwrap().unwrap();
    assert_eq!(
        (info.state, info.attempt),
        (RecordState::InFlight, 2),
        "{step:?}"
    );
    assert!(
        info.expires_in <= before,
        "{step:?}: the lease was made longer"
    );
    lease.commit(&2u64).await.unwrap();
    let later = operation()
        .run(async || -> Result<u64, idem::Error> { panic!("a body ran for a later call") })
        .await
        .unwrap();
    assert_eq!(
        (later.is_replayed(), later.into_inner()),
        (true, 2),
        "{step:?}"
    );
    first.abort();
}
