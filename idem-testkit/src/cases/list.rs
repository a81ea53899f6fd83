//! Which records a listing finds, and how it describes them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use idem_core::StoreErrorKind;
use idem_core::record::{RecordId, RecordState};
use idem_core::store::admin::{Count, Cursor, Listed, Listing};

use crate::bench::{Bench, claim, commit, print, release};
use crate::check::{Failure, broken, holds, same};
use crate::handle::Handle;
use crate::trial::{Trial, code};

pub(super) const TRIALS: &[Trial] = &[
    code("list::of_an_operation_without_records_is_empty", |t| {
        Box::pin(async move { same("its listing", all(&t.store, of_trial(t)?).await?, vec![]) })
    }),
    code("list::of_an_operation_has_each_record_once", |t| {
        Box::pin(async move {
            let wanted = one_of_each(t).await?;
            for limit in [1, 2, 100] {
                let found = all(&t.store, of_trial(t)?.limit(limit)).await?;
                let states: BTreeMap<_, _> = found
                    .iter()
                    .map(|listed| (listed.id.as_str().to_owned(), listed.info.state))
                    .collect();
                same(&format!("the listing, {limit} on a page"), &states, &wanted)?;
                // None of them was written meanwhile. In Redis a key may come twice while the
                // table of keys grows.
                holds("most come once", found.len() < 2 * wanted.len())?;
            }
            Ok(())
        })
    }),
    code("list::of_one_operation_has_none_of_another", |t| {
        Box::pin(async move {
            let mut wanted = Vec::new();
            for suffix in ["", "x", "::x", ".x"] {
                let id = t.id_of(suffix, &"k")?;
                t.own(&claim(&id)).await?;
                wanted.push(id);
            }
            for id in wanted {
                let found = all(&t.store, Listing::all().operation(id.operation())).await?;
                same(
                    "the listing of one operation",
                    ids(&found),
                    vec![id.as_str().to_owned()],
                )?;
            }
            Ok(())
        })
    }),
    code(
        "list::describes_a_record_as_an_inspection_does_without_its_outcome",
        |t| {
            Box::pin(async move {
                one_of_each(t).await?;
                for listed in all(&t.store, of_trial(t)?).await? {
                    let inspected = t.store.inspect(&listed.id).await?;
                    let Some(info) = inspected else {
                        return Err(broken(format!("{:?} is listed and not there", listed.id)));
                    };
                    holds("the outcome is left out", listed.info.outcome.is_none())?;
                    let fixed = |info: &idem_core::RecordInfo| {
                        (
                            info.state,
                            info.attempt,
                            info.fingerprint,
                            info.is_error,
                            info.lease_age.is_some(),
                        )
                    };
                    same("what is fixed", fixed(&listed.info), fixed(&info))?;
                    // Inspected later, so that time has passed.
                    let slack = t.slack();
                    holds(
                        "the expiry counts down",
                        listed.info.expires_in + slack >= info.expires_in,
                    )?;
                    holds(
                        "the expiry is near",
                        listed.info.expires_in.abs_diff(info.expires_in) < Duration::from_secs(30),
                    )?;
                    let ages = (
                        listed.info.lease_age.unwrap_or_default(),
                        info.lease_age.unwrap_or_default(),
                    );
                    holds("the age counts up", ages.0 <= ages.1 + slack)?;
                }
                Ok(())
            })
        },
    ),
    code("list::a_count_agrees_with_the_listing", |t| {
        Box::pin(async move {
            one_of_each(t).await?;
            // As many of each as of no other that has an age or has none as well, and one that time
            // has made done.
            t.given_with(RecordState::InFlight, None).await?;
            for _ in 0..3 {
                t.given_with(RecordState::Released, None).await?;
                t.given_with(RecordState::Done, None).await?;
            }
            let expires = t.given_with(RecordState::InFlight, None).await?;
            let short = expires.commit.with_ttl(t.unit());
            let _ = t.store.commit(&short.with_remember(t.unit() * 100)).await?;
            t.pass_until(t.unit(), &expires.id, Some(RecordState::Done))
                .await?;
            let Some(counted) = counted(t).await? else {
                // Stores need not count.
                return Ok(());
            };
            let mut wanted = BTreeMap::<&str, u64>::new();
            let listed = all(&t.store, of_trial(t)?).await?;
            let ids: BTreeMap<&str, RecordState> = listed
                .iter()
                .map(|listed| (listed.id.as_str(), listed.info.state))
                .collect();
            for state in ids.values() {
                *wanted.entry(state.as_str()).or_default() += 1;
            }
            let counts = counted
                .iter()
                .map(|count| (count.state.as_str(), count.records));
            same("the counts", counts.collect(), wanted)?;
            for count in counted {
                let ages = all(&t.store, of_trial(t)?.state(count.state)).await?;
                let longest = ages.iter().filter_map(|listed| listed.info.lease_age).max();
                let counted = count.silent_for;
                same("a count has an age", counted.is_some(), longest.is_some())?;
                // Listed later, so that time has passed.
                let apart = counted
                    .unwrap_or_default()
                    .abs_diff(longest.unwrap_or_default());
                holds("the ages are near", apart < Duration::from_secs(30))?;
            }
            Ok(())
        })
    }),
    code("list::of_one_state_has_no_other", |t| {
        Box::pin(async move {
            let given = one_of_each(t).await?;
            for state in STATES {
                let wanted: Vec<String> = given
                    .iter()
                    .filter(|(_, other)| **other == state)
                    .map(|(id, _)| id.clone())
                    .collect();
                let found = all(&t.store, of_trial(t)?.state(state)).await?;
                let mut found = ids(&found);
                found.dedup();
                same(&format!("the listing of {state:?}"), found, wanted)?;
            }
            Ok(())
        })
    }),
    code("list::of_a_digest_finds_its_record", |t| {
        Box::pin(async move {
            one_of_each(t).await?;
            let wanted = t.given(RecordState::Released).await?.id;
            // Whatever its operation is: a digest from a log line is all that there is.
            let found = all(&t.store, Listing::all().digest(wanted.digest()).limit(10)).await?;
            same(
                "the listing of a digest",
                ids(&found),
                vec![wanted.as_str().to_owned()],
            )
        })
    }),
    code(
        "list::of_an_age_has_what_nothing_was_heard_of_for_that_long",
        |t| {
            Box::pin(async move {
                let old = t.id()?;
                t.own(&claim(&old)).await?;
                t.given(RecordState::Committed).await?;
                t.pass(t.unit()).await;
                let (young, _) = t.timed(t.given(RecordState::InFlight)).await?;
                let found = all(&t.store, of_trial(t)?.older_than(t.unit())).await?;
                let verdict = same(
                    "what is older than that",
                    ids(&found),
                    vec![old.as_str().to_owned()],
                );
                t.within(t.unit(), young, verdict)
            })
        },
    ),
    code("list::has_no_page_longer_than_its_limit", |t| {
        Box::pin(async move {
            for _ in 0..7 {
                t.own(&claim(&t.id()?)).await?;
            }
            for limit in [0, 1, 3] {
                let mut listing = of_trial(t)?.limit(limit);
                let mut found = BTreeSet::new();
                for _ in 0..MOST_PAGES {
                    let page = t.store.list(&listing).await?;
                    holds(
                        "a page is no longer than its limit",
                        page.records.len() <= limit.max(1),
                    )?;
                    found.extend(
                        page.records
                            .iter()
                            .map(|listed| listed.id.as_str().to_owned()),
                    );
                    match page.next {
                        Some(cursor) => listing = listing.after(cursor),
                        None => break,
                    }
                }
                same("how many there are on all pages", found.len(), 7)?;
            }
            Ok(())
        })
    }),
    code("list::has_the_oldest_first_on_a_page", |t| {
        Box::pin(async move {
            one_of_each(t).await?;
            t.pass(t.unit() / 4).await;
            one_of_each(t).await?;
            let page = all(&t.store, of_trial(t)?).await?;
            let ages: Vec<_> = page.iter().map(|listed| listed.info.lease_age).collect();
            // If the store had it on one page.
            let first = t.store.list(&of_trial(t)?).await?;
            holds(
                "the oldest come first",
                first
                    .records
                    .is_sorted_by(|one, other| one.oldest_first(other).is_le()),
            )?;
            holds("there are some", ages.iter().flatten().count() >= 4)
        })
    }),
    code("list::finds_a_key_that_was_too_long", |t| {
        Box::pin(async move {
            let id = t.id_of("", &"k".repeat(1000))?;
            t.own(&claim(&id)).await?;
            let group = t.id_of("", &(("tenant", 7), "a:b c"))?;
            t.own(&claim(&group)).await?;
            let found = all(&t.store, of_trial(t)?).await?;
            let mut wanted = vec![id.as_str().to_owned(), group.as_str().to_owned()];
            wanted.sort();
            same("the listing", ids(&found), wanted)
        })
    }),
    code("list::by_another_handle_finds_the_same", |t| {
        Box::pin(async move {
            let wanted = one_of_each(t).await?;
            let found = all(&t.second().await?, of_trial(t)?).await?;
            let mut found = ids(&found);
            found.dedup();
            same("the listing", found, wanted.into_keys().collect::<Vec<_>>())
        })
    }),
    code("list::goes_on_with_a_cursor_that_was_text", |t| {
        Box::pin(async move {
            for _ in 0..3 {
                t.own(&claim(&t.id()?)).await?;
            }
            let mut found = BTreeSet::new();
            let mut listing = of_trial(t)?.limit(1);
            loop {
                let page = t.second().await?.list(&listing).await?;
                found.extend(
                    page.records
                        .iter()
                        .map(|listed| listed.id.as_str().to_owned()),
                );
                let Some(cursor) = page.next else { break };
                holds(
                    "a cursor is plain",
                    cursor
                        .as_str()
                        .bytes()
                        .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'),
                )?;
                listing = of_trial(t)?
                    .limit(1)
                    .after(Cursor::from_text(cursor.as_str()));
            }
            same("how many there are on all pages", found.len(), 3)
        })
    }),
    code("list::refuses_the_cursor_of_another_store", |t| {
        Box::pin(async move {
            for text in ["", "?", "nonsense", "AAAA"] {
                let listing = of_trial(t)?.after(Cursor::from_text(text));
                match t.store.try_list(&listing).await? {
                    Err(error) => same("the kind of error", error.kind(), StoreErrorKind::Refused)?,
                    Ok(page) => {
                        return Err(broken(format!("the cursor `{text}` was taken: {page:?}")));
                    }
                }
            }
            Ok(())
        })
    }),
    code("list::tells_what_cannot_be_read", |t| {
        Box::pin(async move {
            let whole = t.given(RecordState::InFlight).await?.id;
            let damaged = t.id()?;
            t.plant(&damaged, b"i1f no record").await?;
            let mut found = Vec::new();
            let mut unreadable = Vec::new();
            let mut listing = of_trial(t)?;
            for _ in 0..MOST_PAGES {
                let page = t.store.list(&listing).await?;
                found.extend(page.records);
                unreadable.extend(page.unreadable);
                let Some(cursor) = page.next else { break };
                listing = listing.after(cursor);
            }
            same(
                "what can be read",
                ids(&found),
                vec![whole.as_str().to_owned()],
            )?;
            let [one] = unreadable.as_slice() else {
                return Err(broken(format!("one is not readable: {unreadable:?}")));
            };
            same("what cannot", one.id.as_str(), damaged.as_str())?;
            same(
                "the kind of error",
                one.error.kind(),
                StoreErrorKind::Unreadable,
            )
        })
    }),
    code(
        "list::has_every_record_that_stays_while_others_come_and_go",
        |t| {
            Box::pin(async move {
                let mut stays = BTreeSet::new();
                let mut goes: Vec<RecordId> = Vec::new();
                for index in 0..60 {
                    let id = t.id()?;
                    t.own(&claim(&id)).await?;
                    if index % 3 == 0 {
                        goes.push(id);
                    } else {
                        stays.insert(id.as_str().to_owned());
                    }
                }
                let mut found = BTreeSet::new();
                let mut listing = of_trial(t)?.limit(4);
                for _ in 0..MOST_PAGES {
                    let page = t.store.list(&listing).await?;
                    found.extend(
                        page.records
                            .iter()
                            .map(|listed| listed.id.as_str().to_owned()),
                    );
                    // One comes, is committed, is released; and one of those of before goes.
                    let one = claim(&t.id()?);
                    let other = claim(&t.id()?);
                    t.own(&one).await?;
                    let _ = t.store.commit(&commit(&one, 1)).await?;
                    t.own(&other).await?;
                    let _ = t.store.release(&release(&other)).await?;
                    if let Some(id) = goes.pop() {
                        let intervention =
                            idem_core::store::admin::Intervention::forget(id).force(true);
                        let _ = t.store.intervene(&intervention).await?;
                    }
                    match page.next {
                        Some(cursor) if found.len() < 1000 => listing = listing.after(cursor),
                        _ => break,
                    }
                }
                let missing: Vec<&String> = stays.difference(&found).collect();
                same("those that stayed and were not listed", missing, vec![])
            })
        },
    ),
];

/// More pages than any of these trials needs.
const MOST_PAGES: usize = 10_000;

/// Every state, but for a token whose time is over.
const STATES: [RecordState; 6] = [
    RecordState::Issued,
    RecordState::InFlight,
    RecordState::Released,
    RecordState::Abandoned,
    RecordState::Committed,
    RecordState::Done,
];

/// The operation of a trial's ids.
fn operation(t: &Bench) -> Result<String, Failure> {
    Ok(t.id()?.operation().to_owned())
}

fn of_trial(t: &Bench) -> Result<Listing, Failure> {
    Ok(Listing::all().operation(operation(t)?))
}

/// A record in each state, by its id.
async fn one_of_each(t: &Bench) -> Result<BTreeMap<String, RecordState>, Failure> {
    let mut all = BTreeMap::new();
    for state in STATES {
        let id = match state {
            RecordState::Issued => t.issued().await?.id,
            state => t.given_with(state, print("one")?).await?.id,
        };
        all.insert(id.as_str().to_owned(), state);
    }
    for given in t.both_committed(None).await? {
        all.insert(given.id.as_str().to_owned(), RecordState::Committed);
    }
    Ok(all)
}

/// Counts the records of this trial, by state. `None`: the store does not count.
async fn counted(t: &Bench) -> Result<Option<Vec<Count>>, Failure> {
    let operation = operation(t)?;
    let mut counts = Vec::<Count>::new();
    let mut after = None;
    for _ in 0..MOST_PAGES {
        let Some(part) = t.store.count(after.as_ref()).await? else {
            return Ok(None);
        };
        let of_trial = part.counts.into_iter();
        for count in of_trial.filter(|count| *count.operation == *operation) {
            match counts.iter_mut().find(|other| other.state == count.state) {
                Some(other) => {
                    other.records += count.records;
                    other.silent_for = other.silent_for.max(count.silent_for);
                }
                None => counts.push(count),
            }
        }
        match part.next {
            Some(next) => after = Some(next),
            None => return Ok(Some(counts)),
        }
    }
    Err(broken(format!(
        "a count did not end after {MOST_PAGES} parts"
    )))
}

/// All pages.
async fn all(store: &Handle, mut listing: Listing) -> Result<Vec<Listed>, Failure> {
    let mut found = Vec::new();
    for _ in 0..MOST_PAGES {
        let page = store.list(&listing).await?;
        holds(
            "a page is no longer than its limit",
            page.records.len() <= listing.limit,
        )?;
        found.extend(page.records);
        match page.next {
            Some(cursor) => listing = listing.after(cursor),
            None => return Ok(found),
        }
    }
    Err(broken(format!(
        "a listing did not end after {MOST_PAGES} pages"
    )))
}

fn ids(found: &[Listed]) -> Vec<String> {
    let mut ids: Vec<String> = found
        .iter()
        .map(|listed| listed.id.as_str().to_owned())
        .collect();
    ids.sort();
    ids
}
