//! Silence: how long a session that owes an answer is waited for.
//!
//! A server answers in the order in which it was asked, so whoever waits also waits for all that others have asked before. The
//! time therefore counts from the last answer that anybody got. A page may have to look through a whole leaf, and what was
//! asked behind a page waits for it; so, until a page is surely through, all wait as long as a page may take.

use std::{
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, timeout_at};

use crate::{
    db::ANSWER_PATIENCE,
    error::{Fault, Work},
};

/// How long a page may take: a whole leaf that is not in memory, on a slow disk.
pub(crate) const PAGE_PATIENCE: Duration = Duration::from_mins(5);

/// What is known of a session's answers.
pub(crate) struct Silence(Mutex<Heard>);

struct Heard {
    /// When somebody last got an answer.
    at: Instant,
    /// Pages that were asked for, and how many of them were surely sent to their end.
    asked: u64,
    through: u64,
    over: bool,
}

impl Silence {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Heard { at: Instant::now(), asked: 0, through: 0, over: false }))
    }

    /// Whether somebody has waited in vain.
    pub(crate) fn is_over(&self) -> bool {
        self.heard().over
    }

    /// Waits for an answer, or until there has been none for too long: then [`Fault::Silent`], and it is over.
    pub(crate) async fn answer<T>(&self, asking: impl Future<Output = Work<T>>) -> Work<T> {
        let before = self.heard().asked;
        let answer = self.wait(asking).await?;
        self.hear(before);
        answer
    }

    /// The same for a page. `is_whole`: whether all of it was sent, or the rest is still on its way.
    pub(crate) async fn page<T>(
        &self,
        asking: impl Future<Output = Work<T>>,
        is_whole: impl FnOnce(&T) -> bool,
    ) -> Work<T> {
        let page = {
            let mut heard = self.heard();
            heard.asked += 1;
            heard.asked
        };
        let answer = self.wait(asking).await?;
        self.hear(if answer.as_ref().map_or(true, is_whole) { page } else { page - 1 });
        answer
    }

    /// The outer result is a silence, the inner one an answer.
    async fn wait<T>(&self, asking: impl Future<Output = Work<T>>) -> Work<Work<T>> {
        let (asked_at, mut asking) = (Instant::now(), pin!(asking));
        // Ends with an answer, or when the server has been silent for long enough.
        loop {
            let until = self.until(asked_at);
            match timeout_at(until, &mut asking).await {
                Ok(answer) => return Ok(answer),
                // Somebody else got an answer meanwhile, or asked for a page.
                Err(_) if self.until(asked_at) > until => {}
                Err(_) => {
                    self.heard().over = true;
                    return Err(Fault::Silent);
                }
            }
        }
    }

    fn until(&self, asked_at: Instant) -> Instant {
        let heard = self.heard();
        let patience = if heard.asked > heard.through { PAGE_PATIENCE } else { ANSWER_PATIENCE };
        asked_at.max(heard.at) + patience
    }

    /// There was an answer, and so many pages are surely through.
    fn hear(&self, through: u64) {
        let mut heard = self.heard();
        heard.at = Instant::now();
        heard.through = heard.through.max(through);
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::{advance, sleep};

    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    /// Answers after so long.
    async fn after(time: Duration) -> Work<()> {
        sleep(time).await;
        Ok(())
    }

    async fn until_silent(silence: &Silence) -> Duration {
        let asked_at = Instant::now();
        let answer = silence.answer(pending::<Work<()>>()).await;
        assert!(answer.is_err_and(|fault| fault.is_silence()) && silence.is_over());
        asked_at.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn who_gets_no_answer_gives_up_and_the_session_is_over() {
        let silence = Silence::new();
        silence.answer(after(ANSWER_PATIENCE - MOMENT)).await.unwrap();
        assert!(!silence.is_over());
        // A long time without a question is no silence.
        advance(PAGE_PATIENCE).await;
        assert!(until_silent(&silence).await <= ANSWER_PATIENCE + MOMENT);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_behind_others_counts_from_their_answers() {
        let silence = Silence::new();
        let step = ANSWER_PATIENCE - MOMENT;
        let others = async {
            for _ in 0..3 {
                silence.answer(after(step)).await.unwrap();
            }
        };
        let (behind, ()) = tokio::join!(silence.answer(after(step * 3 + step / 2)), others);
        behind.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn behind_a_page_everybody_waits_as_long_as_a_page_may_take() {
        let silence = Silence::new();
        let page = silence.page(after(PAGE_PATIENCE - 2 * MOMENT), |()| true);
        let behind = async {
            tokio::task::yield_now().await;
            silence.answer(after(PAGE_PATIENCE - MOMENT)).await
        };
        let (page, behind) = tokio::join!(page, behind);
        page.unwrap();
        behind.unwrap();
        assert!(until_silent(&silence).await <= ANSWER_PATIENCE + MOMENT, "the page is through");
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_whose_rest_is_on_its_way_is_through_with_the_next_answer() {
        let silence = Silence::new();
        silence.page(ready(Ok(())), |()| false).await.unwrap();
        silence.answer(after(ANSWER_PATIENCE * 2)).await.unwrap();
        assert!(until_silent(&silence).await <= ANSWER_PATIENCE + MOMENT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_that_nobody_waits_for_any_more_still_has_its_time() {
        let silence = Silence::new();
        let dropped = silence.page(pending::<Work<()>>(), |()| true);
        assert!(futures_util::FutureExt::now_or_never(dropped).is_none());
        let waited = until_silent(&silence).await;
        assert!(waited > ANSWER_PATIENCE && waited <= PAGE_PATIENCE + MOMENT, "{waited:?}");
    }
}
