//! Each step is recognised on the wire. The tables next to this wait for steps at the proxy: one
//! that is no longer recognised, because its statement changed, would fail them one by one, after
//! their limits, without saying why.

use std::future::pending;

use idem::{Begin, RecordState};
use idem_testkit::{Gate, Mishap, Passing, Proxy};

use crate::matrix::At;
use crate::owner::{Failure, describe};
use crate::server::{Kind, Server, patient};
use crate::support::{LEASE, LONG, eventually};
use crate::wire::{Leg, Step};

async fn every_step_is_recognised(kind: Kind) {
    let server = Server::shared(kind).await;
    let proxy = Proxy::start(&server.url()).await.unwrap();
    let near = patient(&server.url_through(&proxy)).await;
    let far = patient(&server.url()).await;
    let passing = Step::ALL.map(|step| (step, step.passing(kind, &proxy)));
    let of = |wanted: Step| {
        passing
            .iter()
            .find(|(step, _)| *step == wanted)
            .map(|(_, passing)| passing)
            .unwrap()
    };

    // Waits for another owner, who releases; takes over, is renewed, and commits.
    let operation = far.operation("taken").key("k").lease(LONG);
    let Begin::Execute(holder) = operation.begin().await.unwrap() else {
        panic!("there is an outcome")
    };
    let renewed = of(Step::Renew).clone();
    let waits = near
        .operation("taken")
        .key("k")
        .lease(LEASE * 6)
        .wait(LONG)
        .run(async || {
            let _ = tokio::time::timeout(LONG / 2, renewed.reached(1)).await;
            Ok::<_, Failure>(2u64)
        });
    let released = async {
        let _ = tokio::time::timeout(LONG / 2, of(Step::Watch).reached(1)).await;
        holder.release().await.unwrap();
    };
    assert_eq!(describe(tokio::join!(waits, released).0), "value 2");

    // Claims a free key, and releases it.
    let fails = near
        .operation("released")
        .key("k")
        .run(async || Err::<u64, _>(Failure::Declined))
        .await;
    assert_eq!(describe(fails), "declined");

    // Gives a claim back whose answer has not come when its caller goes.
    let operation = near.operation("undone").key("k").lease(LONG);
    of(Step::Claim).always(Mishap::HangReply(Gate::new()));
    let undone = operation.run(async || pending::<Result<u64, Failure>>().await);
    let look = async || far.operation("undone").key("k").inspect().await.unwrap();
    tokio::select! {
        ended = undone => panic!("{}", describe(ended)),
        () = eventually("it has claimed", async || look().await.is_some()) => {}
    }
    eventually("the claim is given back", async || {
        let found = look().await;
        found.is_none_or(|found| found.state != RecordState::InFlight)
    })
    .await;

    let missing: Vec<Step> = passing
        .iter()
        .filter(|(step, passing): &&(Step, Passing)| {
            kind.has(At::On(*step, Leg::Request)) && passing.calls() == 0
        })
        .map(|(step, _)| *step)
        .collect();
    assert!(
        missing.is_empty(),
        "not recognised on the wire: {missing:?}; wire.rs says how they are told"
    );
}

macro_rules! on_each_server {
    ($($(#[$feature:meta])* $name:ident: $kind:ident;)*) => {
        $($(#[$feature])*
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            every_step_is_recognised(Kind::$kind).await;
        })*
    };
}

on_each_server! {
    every_step_is_recognised_on_redis: Redis;
    #[cfg(feature = "postgres")]
    every_step_is_recognised_on_postgres: Postgres;
    #[cfg(feature = "mysql")]
    every_step_is_recognised_on_mariadb: MariaDb;
    #[cfg(feature = "mysql")]
    every_step_is_recognised_on_real_mysql: MySql;
}
