//! The shop: its pages, and the one function that places an order.
//!
//! Two things keep a form from being sent twice, and both are needed:
//!
//! - **Post, redirect, get.** The answer to the form is not a page but the address of one (303). So
//!   the visitor ends on the order's page. It can be reloaded, gone back to and bookmarked without
//!   sending anything. But that works only after the answer. A visitor who clicks twice, reloads,
//!   or loses the connection before, sends the form again. Browsers and proxies also do so by
//!   themselves.
//! - **The token.** Each form has its own, in a hidden field. The first submission of it runs
//!   [`place`]. Every later one, on any server, waits for the first and gets the same answer: the
//!   redirect to the same order. It is valid only for this visitor's session, so it also keeps
//!   other sites from sending this form in the visitor's name.

mod book;
mod order;
mod pages;
mod visitor;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::extract::{Form, Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use axum::{Extension, Router, middleware};
use idem::{Idempotency, RecordState, Token, idempotent};

pub(crate) use self::book::Book;
use self::book::BookError;
use self::order::{Order, OrderForm};
pub(crate) use self::order::{Tea, Wanted};
use self::pages::{Explanation, Reminder};
use self::visitor::Visitor;

#[derive(Clone)]
pub(crate) struct Shop {
    idempotency: Idempotency,
    warehouse: Arc<dyn Warehouse>,
    book: Book,
    /// How long a form can be sent after it was opened.
    pub(crate) form_ttl: Duration,
    /// How long a second submission waits for the first.
    pub(crate) patience: Duration,
}

/// What is slow, fails now and then, and must not be asked twice for one order.
#[async_trait]
pub(crate) trait Warehouse: Send + Sync + 'static {
    async fn reserve(&self, wanted: &Wanted) -> Result<(), OutOfStock>;
}

#[derive(Debug, thiserror::Error)]
#[error("out of stock")]
pub(crate) struct OutOfStock;

/// The operation that tokens are issued for: that of [`place`].
const SUBMIT: &str = "orders.submit";

/// Why an order was not placed.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    OutOfStock(#[from] OutOfStock),
    #[error("the order book: {0}")]
    Book(#[from] BookError),
    #[error(transparent)]
    Idempotency(#[from] idem::Error),
}

/// Places the order that this form stands for.
///
/// - The token is the form's; the subject is the visitor's, and never comes from the form.
/// - The same form with other fields is refused (`fingerprint`), not answered with the order that
///   it was sent for first.
/// - Out of stock: the token is released, and the same form can be sent again. If the book does not
///   answer, it is unknown whether the order is in it. So it is not written a second time until an
///   operator has looked.
/// - A second click makes the browser hang up on the first one's request; the order is placed all
///   the same (`detached`), and the second waits for it.
#[idempotent(
    token = token,
    subject = visitor.session,
    name = "orders.submit",
    fingerprint = wanted,
    ttl = "24h",
    in_flight = wait(shop.patience),
    abandoned = reject,
    errors(
        Refusal::OutOfStock(_) => release,
        Refusal::Book(_) => abandon,
        Refusal::Idempotency(_) => release,
    ),
    runtime = shop.idempotency,
    detached
)]
async fn place(
    shop: Shop,
    visitor: Visitor,
    token: String,
    wanted: Wanted,
) -> Result<Order, Refusal> {
    shop.warehouse.reserve(&wanted).await?;
    Ok(shop.book.enter(wanted).await?)
}

impl Shop {
    pub(crate) fn new(idempotency: Idempotency, book: Book, warehouse: impl Warehouse) -> Self {
        Self {
            idempotency,
            warehouse: Arc::new(warehouse),
            book,
            form_ttl: Duration::from_secs(30 * 60),
            patience: Duration::from_secs(10),
        }
    }

    /// Returns the state of the form that this visitor opened last. A visitor who reloads while the
    /// form is on its way gets a fresh one, and the answer to the first is lost. Without a
    /// reminder, they would order again.
    async fn last_form(&self, visitor: &Visitor) -> Option<RecordState> {
        let token = visitor.last_form.as_ref()?;
        let record = self
            .idempotency
            .operation(SUBMIT)
            .token(token, &visitor.session)
            .inspect()
            .await;
        Some(record.ok()??.state)
    }

    /// The token of a new form.
    async fn token(&self, visitor: &Visitor) -> Result<Token, idem::Error> {
        self.idempotency
            .operation(SUBMIT)
            .issue(&visitor.session, self.form_ttl)
            .await
    }
}

pub(crate) fn router(shop: Shop) -> Router {
    Router::new()
        .route("/", get(open_form))
        .route("/orders", get(show_orders).post(submit_form))
        .route("/orders/{number}", get(show_order))
        .layer(middleware::from_fn(visitor::welcome))
        .route(
            "/style.css",
            get((
                [(header::CONTENT_TYPE, "text/css")],
                include_str!("style.css"),
            )),
        )
        .route(
            "/icon.svg",
            get((
                [(header::CONTENT_TYPE, "image/svg+xml")],
                include_str!("icon.svg"),
            )),
        )
        .route(
            "/form.js",
            get((
                [(header::CONTENT_TYPE, "text/javascript")],
                include_str!("form.js"),
            )),
        )
        .with_state(shop)
}

async fn open_form(State(shop): State<Shop>, Extension(visitor): Extension<Visitor>) -> Response {
    let reminder = match shop.last_form(&visitor).await {
        Some(RecordState::InFlight) => Reminder::BeingPlaced,
        Some(RecordState::Committed) => Reminder::Placed,
        _ => visitor
            .last_order
            .map_or(Reminder::Nothing, Reminder::Order),
    };
    match shop.token(&visitor).await {
        Ok(token) => {
            let form = OrderForm {
                token: token.to_string(),
                ..OrderForm::empty()
            };
            given(
                &form,
                pages::form(&form, &pages::reminder(&reminder)).into_response(),
            )
        }
        Err(error) => closed(&error),
    }
}

async fn submit_form(
    State(shop): State<Shop>,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<OrderForm>,
) -> Response {
    let wanted = match form.check() {
        Ok(wanted) => wanted,
        // Nothing was tried, so the token is as good as before.
        Err(mistakes) => return pages::corrections(&form, &mistakes),
    };
    match place(shop.clone(), visitor.clone(), form.token.clone(), wanted).await {
        Ok(order) => {
            let mut response = Redirect::to(&format!("/orders/{}", order.number)).into_response();
            visitor::set_cookie(
                response.headers_mut(),
                "last_order",
                &order.number.to_string(),
            );
            visitor::set_cookie(response.headers_mut(), "last_form", "");
            response
        }
        Err(refusal) => refused(&shop, &visitor, form, &refusal).await,
    }
}

/// Says plainly what happened, over a form that can be sent: the same one if its token is still
/// valid, else a fresh one. The typed values stay.
async fn refused(shop: &Shop, visitor: &Visitor, form: OrderForm, refusal: &Refusal) -> Response {
    let explanation = explain(visitor, refusal);
    let form = if explanation.same_form {
        form
    } else {
        match shop.token(visitor).await {
            Ok(token) => OrderForm {
                token: token.to_string(),
                ..form
            },
            Err(error) => return closed(&error),
        }
    };
    let page = pages::form(&form, &pages::explanation(&explanation));
    let mut response = given(&form, (explanation.status, page).into_response());
    if let Some(wait) = explanation.retry_after {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, wait.as_secs().max(1).into());
    }
    response
}

/// Adds this form to the answer. The visitor will be reminded of its result.
fn given(form: &OrderForm, mut response: Response) -> Response {
    // Anybody's text is not for our headers.
    if let Ok(token) = form.token.parse::<Token>() {
        visitor::set_cookie(response.headers_mut(), "last_form", &token.to_string());
    }
    response
}

fn explain(visitor: &Visitor, refusal: &Refusal) -> Explanation {
    let same_form = |status, title, text: &str| Explanation {
        status,
        title,
        text: text.to_owned(),
        same_form: true,
        retry_after: None,
    };
    let fresh_form = |status, title, text: &str| Explanation {
        same_form: false,
        ..same_form(status, title, text)
    };
    match refusal {
        Refusal::OutOfStock(_) => same_form(
            StatusCode::SERVICE_UNAVAILABLE,
            "Out of stock just now",
            "Nothing was ordered. More is on its way: try again in a moment, or choose another \
             tea.",
        ),
        Refusal::Idempotency(error) => match error {
            idem::Error::InFlight { lease_left, .. } => Explanation {
                retry_after: Some(*lease_left),
                ..same_form(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "Still on its way",
                    "Your order is being placed and takes longer than usual. Send the form as it \
                     is to see whether it is done: that does not order twice.",
                )
            },
            idem::Error::FingerprintMismatch { .. } => fresh_form(
                StatusCode::CONFLICT,
                "You have sent this form before",
                "It was sent with another order in it, and that order stands. If you want this \
                 one as well, send it now.",
            ),
            idem::Error::UnknownToken { .. } if visitor.is_new => fresh_form(
                StatusCode::CONFLICT,
                "We do not know you any more",
                "Your browser has lost our cookie, or takes none. Nothing was ordered. Look at \
                 your order once more and send it; if you see this again, allow cookies for this \
                 page.",
            ),
            idem::Error::UnknownToken { .. } => fresh_form(
                StatusCode::CONFLICT,
                "This form is too old",
                "It lay here for too long, or it is not from this page. Nothing was ordered by \
                 it. Look at your order once more and send it.",
            ),
            idem::Error::Throttled { retry_after, .. } => Explanation {
                retry_after: Some(*retry_after),
                ..fresh_form(
                    StatusCode::TOO_MANY_REQUESTS,
                    "Please wait a moment",
                    "Too many forms came from you that are not ours. Nothing was ordered. Send \
                     your order in a minute.",
                )
            },
            error if error.is_retryable() => same_form(
                StatusCode::SERVICE_UNAVAILABLE,
                "We could not take your order",
                "Something of ours does not answer. Send the form again in a minute: that does \
                 not order twice.",
            ),
            _ => unknown(),
        },
        Refusal::Book(_) => unknown(),
    }
}

fn unknown() -> Explanation {
    Explanation {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        title: "We cannot say whether your order was placed",
        text: "We were interrupted. Look at the orders before you send this one once more."
            .to_owned(),
        same_form: false,
        retry_after: None,
    }
}

async fn show_order(
    State(shop): State<Shop>,
    Extension(visitor): Extension<Visitor>,
    Path(number): Path<usize>,
) -> Response {
    match shop.book.find(number).await {
        Ok(Some(order)) => pages::order(&order, &visitor).into_response(),
        Ok(None) => (
            StatusCode::NOT_FOUND,
            pages::message("No such order", "There is no order of this number."),
        )
            .into_response(),
        Err(error) => closed(&error),
    }
}

async fn show_orders(State(shop): State<Shop>, Extension(visitor): Extension<Visitor>) -> Response {
    match shop.book.all().await {
        Ok(orders) => pages::orders(&orders, &visitor).into_response(),
        Err(error) => closed(&error),
    }
}

/// No form can be given out, and no order shown.
fn closed(error: &dyn std::error::Error) -> Response {
    eprintln!("{error}");
    let page = pages::message(
        "Closed for a moment",
        "Something of ours does not answer. Reload this page in a minute.",
    );
    (StatusCode::SERVICE_UNAVAILABLE, page).into_response()
}
