//! The bearer token: compared in constant time, never printed.

use std::{
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use axum::{
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use subtle::ConstantTimeEq;

/// What has to be shown, if anything.
pub(super) struct Token(RwLock<Option<String>>);

impl Token {
    pub(super) fn new(token: Option<String>) -> Self {
        Self(RwLock::new(token))
    }

    /// Requests that come from now on show this one.
    pub(super) fn replace(&self, token: String) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(token);
    }

    fn admits(&self, authorization: Option<&str>) -> bool {
        let token = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let Some(token) = &*token else { return true };
        let Some(shown) = authorization.and_then(|value| value.strip_prefix("Bearer ")) else { return false };
        shown.as_bytes().ct_eq(token.as_bytes()).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// Lets a request through that shows the token.
pub(super) async fn require(State(token): State<Arc<Token>>, request: Request, next: Next) -> Response {
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    if token.admits(shown) {
        return next.run(request).await;
    }
    let asks = [(header::WWW_AUTHENTICATE, "Bearer")];
    (StatusCode::UNAUTHORIZED, asks, "show the token of `[admin]`: Authorization: Bearer …\n").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_opens() {
        let token = Token::new(Some("correct horse".to_owned()));
        assert!(token.admits(Some("Bearer correct horse")));
        let wrong = [None, Some(""), Some("Bearer "), Some("Bearer correct"), Some("correct horse"), Some("Basic x")];
        assert!(wrong.into_iter().all(|shown| !token.admits(shown)));
        assert!(Token::new(None).admits(None), "nothing is asked for on loopback");
        assert!(!format!("{token:?}").contains("horse"));
        token.replace("battery staple".to_owned());
        assert!(token.admits(Some("Bearer battery staple")) && !token.admits(Some("Bearer correct horse")));
    }
}
