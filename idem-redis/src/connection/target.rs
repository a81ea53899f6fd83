//! The address of a server: the URL is parsed once, and shown only without its secrets.

use std::sync::Arc;

use idem_core::StoreError;
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};
use url::Url;

use super::error::refused;

/// The host and port of a server.
pub(crate) type Address = (String, u16);

/// A server, as its URL names it.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) info: ConnectionInfo,
    /// The URL without user, password and query, for errors and logs.
    pub(crate) name: Arc<str>,
    #[cfg_attr(not(feature = "tls"), allow(dead_code))]
    pub(crate) tls: bool,
}

impl Target {
    /// Reads a URL. Whatever is wrong with it, the error shows neither user nor password.
    pub(crate) fn parse(text: &str) -> Result<Self, StoreError> {
        let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
        let unix = is_unix(scheme, text)?;
        let url = Url::parse(text).map_err(|error| {
            refused(format!(
                "the Redis URL `{}` cannot be read: {error}; write \
                 `redis://user:password@host:6379/0`, with special characters in user and password \
                 percent-encoded",
                disguised(text)
            ))
        })?;
        let is_socket = unix && url.host_str().is_none_or(str::is_empty) && !url.path().is_empty();
        if !is_socket {
            check_no_secret_after_host(text)?;
        }
        let name = name(&url);
        check_parts(&url, unix, &name)?;
        let tls = matches!(scheme, "rediss" | "valkeys");
        let info = url.into_connection_info().map_err(|error| {
            refused(format!("the Redis URL `{name}` cannot be used: {error}")).with_source(error)
        })?;
        let redis = info
            .redis_settings()
            .clone()
            // RESP2 cannot push the messages of subscriptions.
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        // Without it, a command can wait some 40 ms for the acknowledgement of the previous one.
        let tcp = TcpSettings::default().set_nodelay(true);
        Ok(Self {
            info: info.set_redis_settings(redis).set_tcp_settings(tcp),
            name: name.into(),
            tls,
        })
    }

    /// Returns another server, with the same user, password, database and TLS.
    pub(crate) fn at(&self, host: &str, port: u16) -> Self {
        let address = match self.info.addr() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host: host.to_owned(),
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        let scheme = if self.tls { "rediss" } else { "redis" };
        let bracketed = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let name = format!("{scheme}://{bracketed}:{port}").into();
        Self {
            info: self.info.clone().set_addr(address),
            name,
            tls: self.tls,
        }
    }

    /// Whether this is the server at an address.
    pub(crate) fn is_at(&self, host: &str, port: u16) -> bool {
        match self.info.addr() {
            ConnectionAddr::Tcp(own, own_port)
            | ConnectionAddr::TcpTls {
                host: own,
                port: own_port,
                ..
            } => *own_port == port && own.eq_ignore_ascii_case(host),
            _ => false,
        }
    }

    /// Returns the same server, for another user.
    pub(crate) fn by(self, user: Option<&str>, password: Option<&str>) -> Self {
        let mut redis = self.info.redis_settings().clone();
        if let Some(user) = user {
            redis = redis.set_username(user);
        }
        if let Some(password) = password {
            redis = redis.set_password(password);
        }
        Self {
            info: self.info.set_redis_settings(redis),
            ..self
        }
    }
}

/// Returns whether a scheme names a socket. Refuses a scheme that is not known or not compiled in.
fn is_unix(scheme: &str, text: &str) -> Result<bool, StoreError> {
    match scheme {
        "redis" | "valkey" => Ok(false),
        "rediss" | "valkeys" if cfg!(feature = "tls") => Ok(false),
        "rediss" | "valkeys" => Err(refused(format!(
            "the Redis URL `{}` asks for TLS, which was not compiled in; switch on the feature \
             `redis-tls` of `idem-rs` (`tls` of `idem-redis`)",
            disguised(text)
        ))),
        "unix" | "redis+unix" | "valkey+unix" => Ok(true),
        _ => Err(refused(format!(
            "the Redis URL `{}` must begin with `redis://`, `rediss://` (TLS), `unix://`, \
             `redis+sentinel://` or `redis+cluster://`",
            disguised(text)
        ))),
    }
}

/// Refuses a URL whose password ended early, at one of its own characters. The rest of the password
/// would be shown in errors and logs.
fn check_no_secret_after_host(text: &str) -> Result<(), StoreError> {
    // The text, not the parsed path: `/@/..` is not a part of that.
    let after_host = match text.split_once("://") {
        Some((_, rest)) => rest
            .split_once(['/', '?', '#'])
            .map_or("", |(_, after)| after),
        None => text,
    };
    if after_host.contains('@') {
        return Err(refused(format!(
            "the Redis URL `{}` has an `@` behind the server's name; in user and password, `/` is \
             written `%2F`, `?` `%3F`, `#` `%23` and `@` `%40`",
            disguised(text)
        )));
    }
    Ok(())
}

/// Refuses a fragment, and parameters that are not known.
fn check_parts(url: &Url, unix: bool, name: &str) -> Result<(), StoreError> {
    if url.fragment().is_some() {
        // redis-rs would read `#insecure` and not check the certificate.
        return Err(refused(format!(
            "the Redis URL `{name}` has a part behind `#`, which means nothing here; the server's \
             certificate is always checked, and a `#` in a password is written `%23`"
        )));
    }
    let known: &[&str] = if unix {
        &["db", "user", "pass", "protocol"]
    } else {
        &["protocol"]
    };
    if url
        .query_pairs()
        .any(|(parameter, _)| !known.contains(&&*parameter))
    {
        // The error does not name it: it may be the part of a password after a `&`.
        return Err(refused(format!(
            "the Redis URL `{name}` has a parameter that idem does not know; known here: {}",
            known.join(", ")
        )));
    }
    Ok(())
}

/// Returns the URL without user, password, query and fragment. A path other than a database number
/// is left out too: if a `/` in a password was not percent-encoded, the path holds the rest of the
/// password.
fn name(url: &Url) -> String {
    let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
        let is_socket =
            url.scheme().ends_with("unix") && url.username().is_empty() && url.password().is_none();
        let path = if is_socket { url.path() } else { "" };
        return format!("{}://{path}", url.scheme());
    };
    let port = url
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    let database = url.path().trim_matches('/');
    let numeric = !database.is_empty() && database.bytes().all(|byte| byte.is_ascii_digit());
    format!(
        "{}://{host}{port}{}",
        url.scheme(),
        if numeric {
            format!("/{database}")
        } else {
            String::new()
        }
    )
}

/// Returns the safe part of an unparsed URL: its scheme, and the text after the last `@`, unless
/// that may belong to a parameter.
pub(crate) fn disguised(text: &str) -> String {
    let is_scheme = |scheme: &str| {
        scheme
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
    };
    let scheme = text
        .split_once("://")
        .map(|(scheme, _)| scheme)
        .filter(|scheme| is_scheme(scheme));
    let host = text
        .rsplit_once('@')
        .filter(|(user, _)| !user.contains('?'));
    let host = host.map(|(_, host)| host.split(['?', '#']).next().unwrap_or_default());
    match (scheme, host) {
        (Some(scheme), Some(host)) => format!("{scheme}://***@{host}"),
        (Some(scheme), None) => format!("{scheme}://.."),
        (None, _) => "..".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_name_has_no_secrets() {
        for (url, name) in [
            ("redis://127.0.0.1/", "redis://127.0.0.1"),
            ("redis://user:hunter2@host:7000/3", "redis://host:7000/3"),
            (
                "redis://:hunter2@[::1]:7000/?protocol=resp3",
                "redis://[::1]:7000",
            ),
            (
                "unix:///run/redis.sock?pass=hunter2&user=hunter2",
                "unix:///run/redis.sock",
            ),
        ] {
            assert_eq!(&*Target::parse(url).unwrap().name, name);
        }
    }

    #[test]
    fn errors_about_urls_have_no_secrets() {
        for url in [
            "redis://user:hunter2@host:port/",
            "redis://user:hun#hunter2@host/",
            "redis://user:hun?hunter2@host/",
            "redis://user:12?hunter2@host/",
            "redis://user:?hunter2@host/",
            "redis:///:hunter2@host/",
            "redis:///:hunter2/@host/..",
            "redis:user:hunter2@host",
            "unix://?:hunter2@/path",
            "unix:///run/redis.sock?pass=hun&hunter2",
            "redis://user:12/hunter2@host/",
            "redis://host/#hunter2",
            "redis://:hunter2",
            "redis://host:1/0?password=hunter2",
            "redis://user:hunter2@host/nonumber",
            "hunter2",
            "http://user:hunter2@host/",
            "unix://user:hunter2@/path",
        ] {
            let error = Target::parse(url)
                .err()
                .unwrap_or_else(|| panic!("{url} was read"));
            let mut shown = Vec::new();
            let mut next = Some(&error as &dyn std::error::Error);
            while let Some(error) = next {
                shown.push(format!("{error} {error:?}"));
                next = error.source();
            }
            let shown = shown.join(" ");
            assert!(!shown.contains("hunter2"), "{shown}");
            assert_eq!(error.kind(), idem_core::StoreErrorKind::Refused);
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn tls_names_the_feature_that_it_needs() {
        let error = Target::parse("rediss://host/")
            .err()
            .map(|error| error.to_string())
            .unwrap_or_default();
        assert!(error.contains("redis-tls"), "{error}");
    }
}
