//! Listings and counts of many records, page by page.

use std::collections::{BTreeMap, HashSet};

use idem_core::record::RecordState;
use idem_core::store::AdminStore as _;
use idem_core::store::admin::{Counts, Listing, Page};
use idem_core::{Store as _, StoreErrorKind};
use idem_redis::RedisStore;

use crate::server::Server;
use crate::{SECOND, claim, claim_for, commit, issue, patient, server_and_store};

/// Writes so many thousands of released records.
async fn fill(server: &Server, thousands: usize) {
    let script = "for i = 1, 1000 do \
                  redis.call('SET', 'idem:orders:o-' .. ARGV[1] .. '-' .. i, 'i1r 1.', 'EX', 600) \
                  end";
    for thousand in 0..thousands {
        let () = server
            .send(&["EVAL", script, "0", &thousand.to_string()])
            .await;
    }
}

/// How often each key is listed.
async fn listed(store: &RedisStore, mut listing: Listing) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    loop {
        let page = store.list(&listing).await.unwrap();
        assert!(page.records.len() <= listing.limit);
        for listed in page.records {
            *found.entry(listed.id.key().to_owned()).or_default() += 1;
        }
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => return found,
        }
    }
}

#[tokio::test]
async fn a_full_page_goes_on_before_the_keys_that_were_looked_for_ahead() {
    let (server, store) = server_and_store().await;
    fill(&server, 5).await;
    // A listing of a state looks ahead, whatever the page has room for.
    for limit in [100, 1500] {
        let listing = Listing::all().state(RecordState::Released).limit(limit);
        let found = listed(&store, listing).await;
        assert_eq!(found.len(), 5000, "{limit} on a page");
        assert!(found.values().all(|times| *times == 1));
    }
}

/// The parts of a count, added up.
async fn counted(store: &RedisStore) -> (BTreeMap<(String, &'static str), u64>, u64, usize) {
    let mut all = BTreeMap::new();
    let mut unreadable = 0;
    let mut parts = 0;
    let mut after = None;
    loop {
        let Counts {
            counts,
            unreadable: more,
            next,
            ..
        } = store.count(after.as_ref()).await.unwrap().unwrap();
        parts += 1;
        unreadable += more;
        for count in counts {
            let place = (count.operation.to_string(), count.state.as_str());
            *all.entry(place).or_default() += count.records;
        }
        after = match next {
            Some(next) => Some(next),
            None => return (all, unreadable, parts),
        };
    }
}

#[tokio::test]
async fn a_count_has_each_record_of_every_part_once() {
    let (server, store) = server_and_store().await;
    fill(&server, 25).await;
    let claimed = claim("committed");
    store.claim(&claimed).await.unwrap();
    store.commit(&commit(&claimed, 1, "7")).await.unwrap();
    // Its outcome is kept aside; the other's has expired.
    for (key, ttl) in [("aside", 60_000), ("done", 1)] {
        let claimed = claim(key);
        store.claim(&claimed).await.unwrap();
        let kept = commit(&claimed, 1, "7").with_ttl(SECOND * ttl / 1000);
        store
            .commit(&kept.with_remember(100 * SECOND))
            .await
            .unwrap();
    }
    store
        .claim(&claim_for("in_flight", 250 * SECOND))
        .await
        .unwrap();
    store.issue(&[issue("issued")]).await;
    let values = [
        (
            "abandoned",
            "i1fBwcHBwcHBwcHBwcHBwcHBwn 1 1000 86400000 -.",
            "500000",
        ),
        ("expired", "i1i 1800000.", "500000"),
        ("error", "i1e 1 j - p3CmuQ {}", "500000"),
        ("done_before", "i1d 1 -.", "500000"),
        ("asked", "i2r 1 1.", "500000"),
        ("of_another_program", "text", "500000"),
        ("of_another_version", "i9x", "500000"),
    ];
    for (key, value, ttl) in values {
        let key = format!("idem:mails:{key}");
        let () = server.send(&["SET", &key, value, "PX", ttl]).await;
    }
    let in_flight_for_ever = values[0].1;
    let () = server
        .send(&["SET", "idem:mails:for_ever", in_flight_for_ever])
        .await;
    let () = server.send(&["RPUSH", "idem:mails:list", "1"]).await;
    let (counts, unreadable, parts) = counted(&store).await;
    let wanted = [
        ("mails", "abandoned", 1),
        ("mails", "committed", 1),
        ("mails", "done", 1),
        ("mails", "expired", 1),
        ("mails", "released", 1),
        ("orders", "committed", 2),
        ("orders", "done", 1),
        ("orders", "in_flight", 1),
        ("orders", "issued", 1),
        ("orders", "released", 25_000),
    ];
    let wanted = wanted.map(|(operation, state, records)| ((operation.to_owned(), state), records));
    assert_eq!(counts, wanted.into());
    assert_eq!(unreadable, 4);
    assert!(parts >= 2, "{parts}");
    let error = store
        .count(Some(&idem_core::store::admin::Cursor::from_text("x")))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
}

/// Asks again while the server comes back.
async fn page(store: &RedisStore, listing: &Listing) -> Page {
    loop {
        match store.list(listing).await {
            Ok(page) => return page,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_listing_goes_on_after_a_restart_of_its_server_and_a_count_fails() {
    let server = Server::start(&["--appendonly", "yes"]).await;
    let store = patient(server.url()).await;
    fill(&server, 30).await;
    let mut listing = Listing::all().limit(1000);
    let mut found = HashSet::new();
    let begun = store.count(None).await.unwrap().unwrap().next;
    let begun = begun.expect("there is more to count");
    for round in 0.. {
        let page = page(&store, &listing).await;
        found.extend(page.records.into_iter().map(|listed| listed.id));
        if round == 14 {
            server.restart().await.unwrap();
        }
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => break,
        }
    }
    assert_eq!(found.len(), 30_000);
    let error = store.count(Some(&begun)).await.unwrap_err();
    assert!(error.to_string().contains("count again"), "{error}");
    assert!(error.is_retryable());
    let (counts, ..) = counted(&store).await;
    assert_eq!(counts.into_values().sum::<u64>(), 30_000);
}

#[tokio::test]
async fn without_the_right_to_info_only_what_one_scan_reaches_is_listed() {
    let server = Server::start(&[]).await;
    let rights = "~idem:* +get +set +del +append +pttl +pexpire +evalsha +script|load +ping \
                  +scan +getrange";
    let words = ["ACL", "SETUSER", "app", "reset", "on", ">secret"];
    let words: Vec<_> = words.into_iter().chain(rights.split(' ')).collect();
    let () = server.send(&words).await;
    let store = patient(server.url().replace("://", "://app:secret@")).await;
    store.claim(&claim("1")).await.unwrap();
    assert_eq!(listed(&store, Listing::all()).await.len(), 1);
    fill(&server, 2).await;
    let error = store.list(&Listing::all()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(error.to_string().contains("+info"), "{error}");
}
