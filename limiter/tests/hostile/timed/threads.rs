//! Programs that launch from very many threads and streams.
