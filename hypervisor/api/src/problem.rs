//! Refusals.

word! {
    /// What kind of problem it is.
    pub enum ProblemCode {
        /// The call's path, query or body is not as described.
        BadRequest,
        /// The limits contradict each other, or come to nothing.
        BadLimits,
        /// The caller may not do this.
        Forbidden,
        /// There is no such path, session or device; or not for this caller.
        NotFound,
        /// The path takes other methods.
        MethodNotAllowed,
        /// The body did not come in time.
        Timeout,
        /// The session has no compute share on one of its devices.
        NoTimeLimit,
        /// The session is frozen.
        Frozen,
        /// The session's pages cannot be reached from the daemon, or are not valid.
        NoPage,
        /// The body is too large.
        TooLarge,
        /// The body is of another type.
        WrongType,
        /// The caller's user asks for too much at once.
        TooMany,
        /// The daemon failed.
        Internal,
    }
}

message! {
    /// Why a call is refused.
    pub struct Problem {
        /// What kind of problem it is.
        pub code: ProblemCode,
        /// What was wrong with which value.
        pub message: String,
        /// What would be accepted.
        pub accepted: String,
    }
}
