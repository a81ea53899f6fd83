//! Uses the order form of the example as visitors do, with a real browser. Each test checks how
//! often the warehouse was asked, and the page at the end: the one order, or a plain explanation
//! over a form that can be sent.
#![allow(missing_docs)]

mod pictures;
#[path = "../../../../examples/form/shop/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the program beside it uses the rest"
)]
mod shop;
mod site;

use std::time::Duration;

use anyhow::Result;
use idem_browser::{Browser, Options};

use crate::site::Site;

const BUTTON: &str = "button[type=submit]";
const TOKEN: &str = "input[name=token]";

async fn browser() -> Result<Browser> {
    Browser::start(Options::default()).await
}

async fn browser_without_scripts() -> Result<Browser> {
    Browser::start(Options {
        scripts: false,
        ..Options::default()
    })
    .await
}

/// Opens the form and fills it in.
async fn fill(browser: &Browser, site: &Site) -> Result<()> {
    browser.open(&site.at("/")).await?;
    browser.sees("/", "Order tea").await?;
    browser.click("input[value=sencha]").await?;
    browser.type_into("#tins", "2").await?;
    browser.type_into("#name", "Ada").await
}

/// Waits until the page has its script and its style.
async fn is_loaded(browser: &Browser) -> Result<()> {
    browser
        .until("the whole page", async || {
            Ok(browser.run("return document.readyState").await? == "complete")
        })
        .await
}

/// Waits for the page of an order, whichever it is.
async fn sees_an_order(browser: &Browser) -> Result<()> {
    browser
        .until("the page of an order", async || {
            Ok(browser.text().await?.contains("is placed"))
        })
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_that_is_sent_once_places_one_order() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    fill(&browser, &site).await?;
    browser.click(BUTTON).await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    let page = browser.text().await?;
    assert!(
        page.contains("Thank you, Ada") && page.contains("Sencha") && page.contains("19.60"),
        "{page}"
    );
    assert_eq!((site.forms(), site.runs()), (1, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_double_click_places_one_order() -> Result<()> {
    // Without scripts: nothing but the token stands between the second click and a second order.
    let site = Site::open().await?;
    let browser = browser_without_scripts().await?;
    site.hold();
    fill(&browser, &site).await?;
    browser.double_click(BUTTON).await?;
    site.has_forms(2).await?;
    site.release();
    browser.sees("/orders/1", "Order 1 is placed").await?;
    assert_eq!((site.forms(), site.runs()), (2, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_button_disables_itself_and_says_so() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    site.hold();
    fill(&browser, &site).await?;
    is_loaded(&browser).await?;
    // The button's texts are written down, to be read later.
    let observer = "const button = document.querySelector('button');
        const write = () => sessionStorage.setItem('button', `${button.disabled} \
        ${button.textContent}`);
        new MutationObserver(write).observe(button, { attributes: true, childList: true });";
    browser.run(observer).await?;
    browser.double_click(BUTTON).await?;
    site.has_forms(1).await?;
    site.release();
    browser.sees("/orders/1", "Order 1 is placed").await?;
    assert_eq!(
        browser
            .run("return sessionStorage.getItem('button')")
            .await?,
        "true Placing your order …"
    );
    assert_eq!(
        (site.forms(), site.runs()),
        (1, 1),
        "the second click sent nothing"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_scripts_everything_works() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser_without_scripts().await?;
    fill(&browser, &site).await?;
    site.is_out_of_stock(1);
    browser.click(BUTTON).await?;
    browser.sees("/orders", "Out of stock just now").await?;
    browser.click(BUTTON).await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    assert_eq!((site.forms(), site.runs()), (2, 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_of_the_orders_page_sends_nothing() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    fill(&browser, &site).await?;
    browser.click(BUTTON).await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    browser
        .run("document.querySelector('h1').textContent = 'as it was'")
        .await?;
    browser.reload().await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    assert_eq!((site.forms(), site.runs()), (1, 1));
    Ok(())
}

/// The answer is lost, so the redirect never came: what is reloaded is the form's own request.
/// (Chromium repeats it by itself, too, when the connection is cut.)
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_of_the_post_ends_on_the_one_order() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    fill(&browser, &site).await?;
    site.loses_answers(true);
    browser.click(BUTTON).await?;
    browser.sees("/orders", "ERR_EMPTY_RESPONSE").await?;
    let lost = site.forms();
    site.loses_answers(false);
    browser.reload().await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    assert_eq!((site.forms(), site.runs()), (lost + 1, 1));
    Ok(())
}

/// The visitor gets a fresh form, and the order continues.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_while_the_order_is_being_placed_says_so() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    site.hold();
    fill(&browser, &site).await?;
    browser.click(BUTTON).await?;
    site.has_forms(1).await?;
    browser.reload().await?;
    browser.sees("/", "Your order is being placed").await?;
    assert_eq!(
        browser.property("input[value=sencha]", "checked").await?,
        "false"
    );
    site.release();
    browser.open(&site.at("/orders")).await?;
    browser.sees("/orders", "2 × Sencha").await?;
    // The browser may send a form again whose connection is cut.
    assert_eq!(site.runs(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn back_to_the_form_shows_a_fresh_one_that_a_hasty_click_does_not_send() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    fill(&browser, &site).await?;
    let first = browser.property(TOKEN, "value").await?;
    browser.click(BUTTON).await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    browser.back().await?;
    browser
        .sees("/", "Your order 1 is placed. This is a new form")
        .await?;
    assert_ne!(browser.property(TOKEN, "value").await?, first);
    browser.click(BUTTON).await?;
    assert_eq!(
        browser
            .run("return document.querySelector('form').checkValidity()")
            .await?,
        false
    );
    browser.sees("/", "This is a new form").await?;
    assert_eq!((site.forms(), site.runs()), (1, 1));
    Ok(())
}

/// As browsers do that show a page just as it was left, whatever its headers say.
#[tokio::test(flavor = "multi_thread")]
async fn back_to_the_old_form_and_sent_again_ends_on_the_one_order() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    site.keeps_pages();
    fill(&browser, &site).await?;
    let first = browser.property(TOKEN, "value").await?;
    browser
        .run(
            "addEventListener('pageshow', event => { document.title = `restored: \
                 ${event.persisted}` })",
        )
        .await?;
    browser.click(BUTTON).await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    browser.back().await?;
    browser.sees("/", "Place the order").await?;
    browser
        .until("the page as it was left", async || {
            Ok(browser.run("return document.title").await? == "restored: true")
        })
        .await?;
    assert_eq!(browser.property(TOKEN, "value").await?, first);
    assert_eq!(browser.property("#name", "value").await?, "Ada");
    browser.click(BUTTON).await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    assert_eq!((site.forms(), site.runs()), (2, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn back_to_the_old_form_and_sent_with_another_order_is_explained() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    site.keeps_pages();
    fill(&browser, &site).await?;
    browser.click(BUTTON).await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    browser.back().await?;
    browser.sees("/", "Place the order").await?;
    browser.type_into("#tins", "3").await?;
    browser.click(BUTTON).await?;
    browser
        .sees("/orders", "You have sent this form before")
        .await?;
    assert_eq!(site.runs(), 1);
    // The typed values are there, in a fresh form: sent on purpose, it is another order.
    assert_eq!(browser.property("#tins", "value").await?, "3");
    browser.click(BUTTON).await?;
    browser.sees("/orders/2", "Order 2 is placed").await?;
    assert_eq!(site.runs(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_form_in_two_tabs_places_one_order() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    site.keeps_pages();
    fill(&browser, &site).await?;
    let one = browser.tab().await?;
    let token = browser.property(TOKEN, "value").await?;
    let two = browser.new_tab().await?;
    browser.show(&two).await?;
    fill(&browser, &site).await?;
    assert_eq!(
        browser.property(TOKEN, "value").await?,
        token,
        "the browser has kept the form"
    );

    site.hold();
    browser.click(BUTTON).await?;
    site.has_forms(1).await?;
    browser.show(&one).await?;
    browser.click(BUTTON).await?;
    site.has_forms(2).await?;
    site.release();
    for tab in [one, two] {
        browser.show(&tab).await?;
        browser.sees("/orders/1", "Order 1 is placed").await?;
    }
    assert_eq!((site.forms(), site.runs()), (2, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_forms_in_two_tabs_are_two_orders() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    fill(&browser, &site).await?;
    let one = browser.tab().await?;
    let two = browser.new_tab().await?;
    browser.show(&two).await?;
    fill(&browser, &site).await?;

    site.hold();
    browser.click(BUTTON).await?;
    site.has_forms(1).await?;
    browser.show(&one).await?;
    browser.click(BUTTON).await?;
    site.has_forms(2).await?;
    site.release();
    let mut pages = Vec::new();
    for tab in [one, two] {
        browser.show(&tab).await?;
        sees_an_order(&browser).await?;
        pages.push(browser.path().await?);
    }
    pages.sort();
    assert_eq!(pages, ["/orders/1", "/orders/2"]);
    assert_eq!((site.forms(), site.runs()), (2, 2));
    Ok(())
}

/// Sends the form, whose token does not count: the explanation must have in it what was typed and a
/// form that can be sent.
async fn is_explained(browser: &Browser, site: &Site, title: &str) -> Result<()> {
    let refused = browser.property(TOKEN, "value").await?;
    browser.click(BUTTON).await?;
    browser.sees("/orders", title).await?;
    assert_eq!(site.runs(), 0, "nothing was ordered");
    assert_ne!(
        browser.property(TOKEN, "value").await?,
        refused,
        "the form is a fresh one"
    );
    assert_eq!(browser.property("#name", "value").await?, "Ada");
    assert_eq!(
        browser.property("input[value=sencha]", "checked").await?,
        "true"
    );
    browser.click(BUTTON).await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    assert_eq!((site.forms(), site.runs()), (2, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_form_that_lay_for_too_long_is_explained() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    fill(&browser, &site).await?;
    site.passes(Duration::from_secs(31 * 60));
    is_explained(&browser, &site, "This form is too old").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_made_by_hand_is_explained() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    fill(&browser, &site).await?;
    browser
        .tamper(TOKEN, "aaaabbbbccccddddeeeeffffgggghhhh")
        .await?;
    is_explained(&browser, &site, "This form is too old").await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_visitors_token_is_explained() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    fill(&browser, &site).await?;
    let stolen = browser.property(TOKEN, "value").await?;
    browser.forget_cookies().await?;
    // Otherwise the form from before could be taken for the new one.
    browser.open("about:blank").await?;
    browser.sees("blank", "").await?;
    fill(&browser, &site).await?;
    browser.tamper(TOKEN, &stolen).await?;
    is_explained(&browser, &site, "This form is too old").await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_visitor_who_has_lost_the_cookie_is_told() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    fill(&browser, &site).await?;
    browser.forget_cookies().await?;
    is_explained(&browser, &site, "We do not know you any more").await
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_too_many_foreign_tokens_is_asked_to_wait() -> Result<()> {
    let site = Site::open_guarded(2).await?;
    let browser = browser().await?;
    for title in [
        "This form is too old",
        "This form is too old",
        "Please wait a moment",
    ] {
        fill(&browser, &site).await?;
        browser
            .tamper(TOKEN, "aaaabbbbccccddddeeeeffffgggghhhh")
            .await?;
        browser.click(BUTTON).await?;
        browser.sees("/orders", title).await?;
    }
    assert_eq!((site.forms(), site.runs()), (3, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failure_of_the_warehouse_the_same_form_can_be_sent_again() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    site.is_out_of_stock(1);
    fill(&browser, &site).await?;
    let token = browser.property(TOKEN, "value").await?;
    browser.click(BUTTON).await?;
    browser.sees("/orders", "Out of stock just now").await?;
    assert_eq!(
        browser.property(TOKEN, "value").await?,
        token,
        "it is the same form"
    );
    assert_eq!(browser.property("#tins", "value").await?, "2");
    browser.click(BUTTON).await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    assert_eq!((site.forms(), site.runs()), (2, 2));
    Ok(())
}

/// What is reloaded is the answer to the form, so the form is sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_reload_of_the_explanation_tries_the_order_again() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    site.is_out_of_stock(1);
    fill(&browser, &site).await?;
    browser.click(BUTTON).await?;
    browser.sees("/orders", "Out of stock just now").await?;
    browser.reload().await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    assert_eq!((site.forms(), site.runs()), (2, 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_takes_too_long_is_explained_and_found_by_the_same_form() -> Result<()> {
    let site = Site::open_with(|shop| shop.patience = Duration::from_millis(1)).await?;
    let browser = browser_without_scripts().await?;
    site.hold();
    fill(&browser, &site).await?;
    browser.double_click(BUTTON).await?;
    browser.sees("/orders", "Still on its way").await?;
    site.release();
    browser.click(BUTTON).await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    assert_eq!((site.forms(), site.runs()), (3, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_in_the_form_is_said_beside_it_and_costs_no_token() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser().await?;
    fill(&browser, &site).await?;
    browser
        .type_into("#name", "<script>alert(1)</script>")
        .await?;
    browser.tamper("#tins", "77").await?;
    // The browser would say it first.
    browser
        .run("document.querySelector('form').noValidate = true")
        .await?;
    let token = browser.property(TOKEN, "value").await?;
    browser.click(BUTTON).await?;
    browser.sees("/orders", "Order 1 to 9 tins.").await?;
    assert_eq!(browser.property(TOKEN, "value").await?, token);
    assert_eq!(
        browser.property("#name", "value").await?,
        "<script>alert(1)</script>"
    );
    browser.type_into("#tins", "7").await?;
    browser.click(BUTTON).await?;
    browser
        .sees("/orders/1", "Thank you, <script>alert(1)</script>")
        .await?;
    assert_eq!((site.forms(), site.runs()), (2, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_orders_are_shown_as_they_are_placed() -> Result<()> {
    let site = Site::open().await?;
    let browser = browser_without_scripts().await?;
    browser.open(&site.at("/orders")).await?;
    browser.sees("/orders", "None yet").await?;
    let orders = browser.tab().await?;
    let form = browser.new_tab().await?;
    for count in 1..=2 {
        browser.show(&form).await?;
        fill(&browser, &site).await?;
        browser.click(BUTTON).await?;
        browser
            .sees(&format!("/orders/{count}"), "is placed")
            .await?;
        // Nobody touches this tab.
        browser.show(&orders).await?;
        let shown = async || Ok(browser.text().await?.matches("2 × Sencha").count() == count);
        browser
            .until("as many orders as were placed", shown)
            .await?;
    }
    assert_eq!(site.runs(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_phone_nothing_is_cut_off() -> Result<()> {
    let site = Site::open().await?;
    let browser = Browser::start(Options {
        phone: true,
        ..Options::default()
    })
    .await?;
    let fits = async || -> Result<()> {
        is_loaded(&browser).await?;
        let widths =
            "return [document.documentElement.clientWidth, document.documentElement.scrollWidth]";
        assert_eq!(
            browser.run(widths).await?,
            serde_json::json!([320, 320]),
            "{}",
            browser.text().await?
        );
        Ok(())
    };
    site.is_out_of_stock(1);
    fill(&browser, &site).await?;
    browser
        .type_into(
            "#name",
            "Llanfairpwllgwyngyllgogerychwyrndrobwllllantysiliogogogoch",
        )
        .await?;
    fits().await?;
    browser.click(BUTTON).await?;
    browser.sees("/orders", "Out of stock just now").await?;
    fits().await?;
    browser.click(BUTTON).await?;
    browser.sees("/orders/1", "Order 1 is placed").await?;
    fits().await?;
    browser.open(&site.at("/orders")).await?;
    browser.sees("/orders", "yours").await?;
    fits().await
}
