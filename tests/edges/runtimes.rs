//! Several tokio runtimes in a process: ones that end, that are not driven, and that are busy.

use idem::{Error, Idempotency, InFlight, MemoryStore};
use idem_testkit::{Fault, Step};

use crate::support::{LEASE, LONG};
use crate::{Res, faulty};

#[test]
fn p1_leases_are_renewed_on_each_tokio_runtime_whatever_becomes_of_the_others() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap()
    };
    let store = MemoryStore::new();
    let idempotency = Idempotency::new(store.clone());
    let ended = runtime();
    let parked = runtime();
    let live = runtime();
    for (tokio, key) in [(&ended, "ended"), (&parked, "parked")] {
        tokio
            .block_on(
                idempotency
                    .operation("op")
                    .key(key)
                    .run(async || Res::Ok(0)),
            )
            .unwrap();
    }
    drop(ended);
    live.block_on(async {
        let long = idempotency
            .operation("op")
            .key("k")
            .lease(LEASE)
            .run(async || {
                tokio::time::sleep(LEASE * 3).await;
                Res::Ok(1)
            });
        assert_eq!(long.await.unwrap().into_inner(), 1);
    });
    drop(parked);
}

#[test]
fn p1_leases_are_renewed_where_all_threads_for_blocking_work_are_busy() {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder
        .worker_threads(2)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (busy, wait) = std::sync::mpsc::channel::<()>();
    runtime.spawn_blocking(move || wait.recv());
    let outcome = runtime.block_on(async {
        let idempotency = Idempotency::new(MemoryStore::new());
        let body = async || {
            tokio::time::sleep(LEASE * 2).await;
            Ok::<_, Error>(7)
        };
        idempotency
            .operation("edges")
            .key("busy")
            .lease(LEASE)
            .run(body)
            .await
    });
    drop(busy);
    assert_eq!(outcome.unwrap().into_inner(), 7);
}

#[test]
fn p9_and_p10_what_goes_on_in_the_background_moves_to_another_tokio_runtime_when_its_own_ends() {
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let ends = runtime();
    let stays = runtime();
    let (idempotency, faults) = faulty(&MemoryStore::new());
    let call = |key: &'static str| idempotency.operation("op").key(key).lease(LONG);
    stays
        .block_on(call("stays").run(async || Res::Ok(0)))
        .unwrap();
    faults.always(Step::Commit, Fault::LoseRequest);
    faults.always(Step::Release, Fault::LoseRequest);
    for _ in 0..2 {
        faults.next(Step::Claim, Fault::LoseReply);
    }
    ends.block_on(call("claim").run(async || Res::Ok(1)))
        .unwrap_err();
    ends.block_on(call("commit").run(async || Res::Ok(2)))
        .unwrap();
    drop(ends);
    faults.clear();
    stays.block_on(async {
        idempotency.shutdown(LONG).await.unwrap();
        let committed = call("commit").run(async || Res::Ok(3)).await.unwrap();
        assert_eq!((committed.is_replayed(), committed.into_inner()), (true, 2));
        let free = call("claim")
            .in_flight(InFlight::Reject)
            .run(async || Res::Ok(4))
            .await
            .unwrap();
        assert_eq!(free.into_inner(), 4);
    });
}

#[test]
fn p10_a_claim_is_undone_although_a_tokio_runtime_that_undoes_others_is_not_driven() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    };
    let parked = runtime();
    let driven = runtime();
    let (idempotency, faults) = faulty(&MemoryStore::new());
    let call = |key: &'static str| idempotency.operation("op").key(key).lease(LONG);
    for _ in 0..4 {
        faults.next(Step::Claim, Fault::LoseReply);
    }
    faults.next(Step::Release, Fault::LoseRequest);
    parked
        .block_on(call("parked").run(async || Res::Ok(1)))
        .unwrap_err();
    driven.block_on(async {
        call("driven").run(async || Res::Ok(2)).await.unwrap_err();
        for key in ["driven", "parked"] {
            let free =
                tokio::time::timeout(LONG / 2, call(key).wait(LONG).run(async || Res::Ok(3)))
                    .await
                    .unwrap();
            assert_eq!(free.unwrap().into_inner(), 3);
        }
    });
    drop(parked);
}
