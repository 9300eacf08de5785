// Nothing: the targets that precompile the shared headers need a source.
