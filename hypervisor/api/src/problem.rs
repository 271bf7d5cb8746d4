//! Messages about refused calls.

word! {
    /// Kind of a refusal.
    pub enum ProblemCode {
        /// The call's path, query or body does not match the description.
        BadRequest,
        /// The limits contradict each other, or amount to nothing.
        BadLimits,
        /// The caller lacks the permission.
        Forbidden,
        /// The path, session or device does not exist, or not for this caller.
        NotFound,
        /// The path does not support this method.
        MethodNotAllowed,
        /// The body did not arrive in time.
        Timeout,
        /// The session has no compute share on one of its devices.
        NoTimeLimit,
        /// The session is frozen.
        Frozen,
        /// The session's pages are inaccessible to the daemon, or invalid.
        NoPage,
        /// The body is too large.
        TooLarge,
        /// The body has another content type.
        WrongType,
        /// The caller's user has too many concurrent calls or items.
        TooMany,
        /// The daemon failed.
        Internal,
    }
}

message! {
    /// A refused call.
    pub struct Problem {
        /// Kind of the refusal.
        pub code: ProblemCode,
        /// What is wrong with which value.
        pub message: String,
        /// What would be accepted.
        pub accepted: String,
    }
}
