//! `[admin]`: where the daemon answers for itself.
//!
//! ```toml
//! [admin]
//! listen = "127.0.0.1:9464"                  # the default
//! token = { file = "secrets/admin" }         # asked for by /metrics and /healthz; needed beyond loopback
//! ```
//!
//! Without the section nothing is listened on.

use std::net::SocketAddr;

use super::{
    reader::Section,
    secret,
    shapes::{address, written},
};

/// The shortest token that is worth the name.
const TOKEN_BYTES_MIN: usize = 16;

/// Where to listen, and what has to be shown there.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AdminConfig {
    pub(crate) listen: SocketAddr,
    pub(crate) token: Option<secret::Place>,
}

impl AdminConfig {
    /// The token itself.
    pub(crate) fn token(&self) -> postrider::Result<Option<String>> {
        let Some(place) = &self.token else { return Ok(None) };
        let token = place.get()?;
        check_token(&token).map_err(postrider::Error::invalid)?;
        Ok(Some(token))
    }
}

pub(super) fn read(top: &mut Section<'_, '_>) -> Option<AdminConfig> {
    let mut section = top.section("admin")?;
    let listen = section.value("listen", written(address));
    let token = section.secrets("token", |value| Ok(vec![secret::Place::read(value)?]), check_token).pop();
    if !listen.ip().is_loopback() && !section.has("token") {
        section.object(
            "listen",
            "is not a loopback address, so everybody who can reach it could read from it: give a `token` too, or listen on \
             127.0.0.1",
        );
    }
    section.close();
    Some(AdminConfig { listen, token })
}

fn check_token(token: &str) -> Result<(), String> {
    let bytes = token.len();
    if bytes < TOKEN_BYTES_MIN {
        return Err(format!("is too short to be a token: {bytes} bytes, and it needs at least {TOKEN_BYTES_MIN}"));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') || token.trim() != token {
        return Err(
            "has what a header cannot carry: it may have letters, digits and signs of ASCII, and spaces inside"
                .to_owned(),
        );
    }
    Ok(())
}
