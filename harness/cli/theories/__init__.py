"""The forms of `bench theory`: each is a module of this package, loaded only when it is called."""
