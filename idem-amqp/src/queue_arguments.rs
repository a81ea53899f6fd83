//! The arguments of a queue that exists.
//!
//! AMQP has no request for them. But the broker refuses a declaration with other arguments, and the
//! refusal says what one argument is. So the queue is declared again and again, each time with the
//! argument that the last refusal named, until the broker accepts. If a refusal cannot be read, the
//! application must name the dead-letter exchange.

use std::collections::BTreeMap;

use idem_queue::Fault;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};

use crate::connector::Connector;
use crate::request::run_to_end;

/// More declarations than a queue has arguments.
const MOST_DECLARATIONS: usize = 24;

/// Arguments by name, as far as they are text or numbers.
pub(crate) type Arguments = BTreeMap<String, AMQPValue>;

/// What a refusal says.
#[derive(Debug, PartialEq)]
enum Differs {
    /// A flag of the queue, such as `durable`, and what it is.
    Flag(String, bool),
    Argument(String, AMQPValue),
}

/// Asks for the arguments of a queue. The queue must exist. `None`: a refusal cannot be read.
pub(crate) async fn ask(
    connector: &Connector<'_>,
    queue: &str,
) -> Result<Option<Arguments>, Fault> {
    let mut options = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    let mut arguments = Arguments::new();
    for _ in 0..MOST_DECLARATIONS {
        // A refusal closes the channel.
        let channel = connector.channel().await?;
        let mut table = FieldTable::default();
        for (name, value) in &arguments {
            table.insert(name.as_str().into(), value.clone());
        }
        let name = queue.into();
        let asked = run_to_end(async move { channel.queue_declare(name, options, table).await });
        match asked.await {
            Ok(_) => return Ok(Some(arguments)),
            Err(error) => match read(&error.to_string()) {
                Some(Differs::Flag(name, value)) => match name.as_str() {
                    "durable" => options.durable = value,
                    "auto_delete" => options.auto_delete = value,
                    _ => return Ok(None),
                },
                Some(Differs::Argument(name, value)) if !arguments.contains_key(&name) => {
                    arguments.insert(name, value);
                }
                // The broker named the same argument again, so its first refusal was read wrongly.
                Some(Differs::Argument(..)) => return Ok(None),
                None if error.is_amqp_error() => return Ok(None),
                None => return Err(Fault::passing(error)),
            },
        }
    }
    Ok(None)
}

fn read(refusal: &str) -> Option<Differs> {
    let (_, rest) = refusal.split_once("inequivalent arg '")?;
    let (name, rest) = rest.split_once('\'')?;
    let (_, current) = rest.rsplit_once("but current is ")?;
    let Some(value) = current.strip_prefix("the value '") else {
        let value = current.strip_prefix('\'')?.split_once('\'')?.0;
        return Some(Differs::Flag(name.to_owned(), value.parse().ok()?));
    };
    let (value, kind) = value.rsplit_once("' of type '")?;
    let kind = kind.split_once('\'')?.0;
    let value = match kind {
        "longstr" => AMQPValue::LongString(value.into()),
        "signedint" => AMQPValue::LongInt(value.parse().ok()?),
        "long" => AMQPValue::LongLongInt(value.parse().ok()?),
        "short" => AMQPValue::ShortInt(value.parse().ok()?),
        "byte" => AMQPValue::ShortShortInt(value.parse().ok()?),
        "bool" => AMQPValue::Boolean(value.parse().ok()?),
        _ => return None,
    };
    Some(Differs::Argument(name.to_owned(), value))
}

/// The text of an argument.
pub(crate) fn text(arguments: &Arguments, name: &str) -> Option<String> {
    match arguments.get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        _ => None,
    }
}

/// An argument that is a number of milliseconds.
pub(crate) fn millis(arguments: &Arguments, name: &str) -> Option<u64> {
    match arguments.get(name)? {
        AMQPValue::LongInt(number) => u64::try_from(*number).ok(),
        AMQPValue::LongLongInt(number) => u64::try_from(*number).ok(),
        AMQPValue::ShortInt(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_tells_one_argument_and_one_that_is_cut_off_tells_none() {
        let text = "PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange' for queue \
            'orders' in vhost '/': received none but current is the value 'orders.dead' of type \
            'longstr'";
        let name = "x-dead-letter-exchange".to_owned();
        assert_eq!(
            read(text),
            Some(Differs::Argument(
                name,
                AMQPValue::LongString("orders.dead".into())
            ))
        );
        assert_eq!(read(&text[..text.len() - 12]), None);
        let text = "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q' in vhost '/': \
            received 'true' but current is 'false'";
        assert_eq!(read(text), Some(Differs::Flag("durable".into(), false)));
        assert_eq!(read("NOT_FOUND - no queue 'orders' in vhost '/'"), None);
    }
}
