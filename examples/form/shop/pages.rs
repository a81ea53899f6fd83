//! The pages. `html!` escapes everything that was typed.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::{Html, IntoResponse as _, Response};
use maud::{DOCTYPE, Markup, html};

use super::order::{Mistakes, Order, OrderForm, Tea};
use super::visitor::Visitor;

type Page = Html<String>;

/// The text over a form that was sent without placing an order.
pub(crate) struct Explanation {
    pub(crate) status: StatusCode,
    pub(crate) title: &'static str,
    pub(crate) text: String,
    /// The token still counts, so the form below is the one that was sent.
    pub(crate) same_form: bool,
    pub(crate) retry_after: Option<Duration>,
}

/// The text over a fresh form, for visitors who have sent one before: sending it would order again.
pub(crate) enum Reminder {
    Nothing,
    BeingPlaced,
    Placed,
    Order(usize),
}

/// The form, empty or as it was typed.
pub(crate) fn form(form: &OrderForm, above: &Markup) -> Page {
    page(
        "Order tea",
        &html! { (above) (fields(form, &Mistakes::default())) },
    )
}

pub(crate) fn explanation(explanation: &Explanation) -> Markup {
    notice(explanation.title, &explanation.text)
}

pub(crate) fn reminder(reminder: &Reminder) -> Markup {
    let all = html! { a href="/orders" { "the orders" } };
    let text = match reminder {
        Reminder::Nothing => return html! {},
        Reminder::BeingPlaced => {
            html! { "Your order is being placed. You will find it among " (all) "." }
        }
        Reminder::Placed => html! { "Your order is placed. You find it among " (all) "." },
        Reminder::Order(number) => {
            html! { "Your " a href=(format!("/orders/{number}")) { "order " (number) } " is placed." }
        }
    };
    html! { aside.notice.good { p { (text) " This is a new form, for another one." } } }
}

/// The form as it was typed, with what is wrong in it.
pub(crate) fn corrections(form: &OrderForm, mistakes: &Mistakes) -> Response {
    let above = notice(
        "Something is missing",
        "Nothing was ordered. Mend what is marked and send the form again.",
    );
    let page = page("Order tea", &html! { (above) (fields(form, mistakes)) });
    (StatusCode::UNPROCESSABLE_ENTITY, page).into_response()
}

pub(crate) fn order(order: &Order, visitor: &Visitor) -> Page {
    let Order { number, wanted } = order;
    let title = format!("Order {number}");
    let body = html! {
        section.card.done {
            @if visitor.last_order == Some(*number) { p.eyebrow { "Thank you, " (wanted.name) } }
            h1 { "Order " (number) " is placed" }
            dl {
                dt { "Tea" } dd { (wanted.tea.name()) }
                dt { "Tins" } dd { (wanted.tins) }
                dt { "For" } dd { (wanted.name) }
                dt { "Total" } dd { (price(wanted.tea.cents() * wanted.tins)) }
            }
            p.quiet { "Reload this page as often as you like: it orders nothing." }
        }
        p.more { a href="/" { "Order something else" } }
    };
    page(&title, &body)
}

/// The orders, and those to come: the page asks for itself again, with or without JavaScript.
pub(crate) fn orders(orders: &[Order], visitor: &Visitor) -> Page {
    let body = html! {
        section.card {
            h1 { "Orders, as they are placed" }
            @if orders.is_empty() { p.quiet { "None yet. This page shows the first one by itself." } }
            @else {
                ol.orders reversed {
                    @for Order { number, wanted } in orders {
                        li {
                            a href=(format!("/orders/{number}")) {
                                span.number { (number) }
                                span {
                                    strong { (wanted.tins) " × " (wanted.tea.name()) }
                                    @if visitor.last_order == Some(*number) { span.yours { "yours" } }
                                    br;
                                    span.quiet { "for " (wanted.name) }
                                }
                                span.price { (price(wanted.tea.cents() * wanted.tins)) }
                            }
                        }
                    }
                }
            }
        }
    };
    with_head(
        "Orders",
        &html! { meta http-equiv="refresh" content="2"; },
        &body,
    )
}

pub(crate) fn message(title: &str, text: &str) -> Page {
    page(
        title,
        &html! { section.card { h1 { (title) } p { (text) } } },
    )
}

fn fields(form: &OrderForm, mistakes: &Mistakes) -> Markup {
    html! {
        // Browsers fill in what was typed when they are asked to go back, also into a fresh form;
        // sent by a hasty click, it would be a second order. So the form is to stay empty, and the
        // token to stay the fresh one.
        form.card method="post" action="/orders" autocomplete="off" {
            h1 { "Order tea" }
            input type="hidden" name="token" value=(form.token);
            fieldset aria-describedby=[mistakes.tea.map(|_| "tea-mistake")] {
                legend { "Tea" }
                @for tea in Tea::ALL {
                    label.choice {
                        input type="radio" name="tea" value=(tea.id()) checked[form.tea == tea.id()] required;
                        span { strong { (tea.name()) } br; span.quiet { (tea.about()) } }
                        span.price { (price(tea.cents())) }
                    }
                }
                (mistake("tea-mistake", mistakes.tea))
            }
            div.row {
                div.field {
                    label for="tins" { "Tins" }
                    input #tins type="number" name="tins" value=(form.tins) min="1" max="9" required
                        aria-invalid=[mistakes.tins.map(|_| "true")] aria-describedby=[mistakes.tins.map(|_| "tins-mistake")];
                    (mistake("tins-mistake", mistakes.tins))
                }
                div.field.wide {
                    label for="name" { "Your name" }
                    input #name type="text" name="name" value=(form.name) maxlength="60" autocomplete="name" required
                        aria-invalid=[mistakes.name.map(|_| "true")] aria-describedby=[mistakes.name.map(|_| "name-mistake")];
                    (mistake("name-mistake", mistakes.name))
                }
            }
            button type="submit" data-sending="Placing your order …" { "Place the order" }
            p.quiet role="status" { "It takes a few seconds. Pressing twice does not order twice." }
        }
    }
}

fn mistake(id: &str, mistake: Option<&str>) -> Markup {
    html! { @if let Some(mistake) = mistake { p.mistake #(id) { (mistake) } } }
}

fn notice(title: &str, text: &str) -> Markup {
    html! { aside.notice role="alert" { h2 { (title) } p { (text) } } }
}

fn price(cents: u32) -> String {
    format!("€ {}.{:02}", cents / 100, cents % 100)
}

fn page(title: &str, body: &Markup) -> Page {
    with_head(title, &html! {}, body)
}

fn with_head(title: &str, head: &Markup, body: &Markup) -> Page {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Leaf & Tin" }
                link rel="stylesheet" href="/style.css";
                link rel="icon" href="/icon.svg" type="image/svg+xml";
                script src="/form.js" defer {}
                (head)
            }
            body {
                header {
                    a.brand href="/" { "Leaf & Tin" }
                    nav aria-label="Pages" { a href="/" { "Order" } a href="/orders" { "Orders" } }
                }
                main { (body) }
            }
        }
    };
    Html(page.into_string())
}
