//! Rules that can be broken on purpose under shuttle, to see that its models notice.

#![cfg_attr(not(shuttle), allow(unreachable_pub, reason = "only shuttle's models see it"))]

/// A rule to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// EXEC-E1: a task is queued, and the sleeping executor not woken.
    ForgetToWake,
    /// EXEC-E1: a task that is queued between the look at the queue and the note of the sleep is
    /// missed.
    SleepBlindly,
    /// EXEC-E1: a new first timer is not reported.
    ForgetTimer,
    /// EXEC-E4: operations of other threads are queued, and the sleeping executor not woken.
    ForgetToCarry,
    /// The end is noted, and the sleeping executor not woken.
    ForgetToStop,
    /// RING-U2: a completion is taken and thrown away.
    DropCompletion,
    /// RING-U3: the backlog is not looked at when operations are done.
    ForgetBacklog,
    /// RING-U4: entries that the kernel does not take at once are left until the next sleep.
    TrustSubmission,
    /// EAGAIN at the first use is taken for a refusal.
    RefuseEarly,
    /// ENOMEM later on is taken for the end of the ring.
    FailWhenShort,
    /// RING-U5: the ring is closed while operations are in flight.
    CloseEarly,
    /// RING-U6: the kernel ends the listening to the bell, and it is not begun again.
    ListenOnce,
    /// RING-U7: completions that the kernel left to the thread are not fetched while it is busy.
    LeaveDeferred,
}

/// Which rule is broken: none, where there is no shuttle.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Broken {
    #[cfg(shuttle)]
    pub(crate) rule: Option<Sabotage>,
}

impl Broken {
    #[cfg(shuttle)]
    pub(crate) fn is(self, rule: Sabotage) -> bool {
        self.rule == Some(rule)
    }

    #[cfg(not(shuttle))]
    pub(crate) const fn is(self, _: Sabotage) -> bool {
        false
    }
}
