//! `[admin]`: where the daemon answers for itself.
//!
//! ```toml
//! [admin]
//! listen = "127.0.0.1:9464"                  # the default
//! token = { file = "secrets/admin" }         # asked for by /metrics and /healthz; needed beyond loopback
//! ```
//!
//! Without the section nothing is listened on.

use std::net::{Ipv4Addr, SocketAddr};

use super::{
    reader::{Section, written},
    secret,
};

/// The port, unless another is given.
const PORT: u16 = 9464;

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
        let token = place.look_up()?;
        if token.len() < TOKEN_BYTES_MIN {
            return Err(postrider::Error::invalid("the token of `[admin]` is too short to be one")
                .with("bytes", token.len())
                .with("least", TOKEN_BYTES_MIN));
        }
        Ok(Some(token))
    }
}

pub(super) fn read(top: &mut Section<'_, '_>) -> Option<AdminConfig> {
    let mut section = top.section("admin")?;
    let listen = section.get("listen", written(address)).unwrap_or_else(|| (Ipv4Addr::LOCALHOST, PORT).into());
    let token = section.get("token", secret::Place::read);
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

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "must be an address and a port, such as \"127.0.0.1:9464\"".to_owned())
}
