//! Pages that are cut or zeroed while threads run.
